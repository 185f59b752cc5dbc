"""Malformed input: one user sends each broken request, then a canary, then asks whether the node is alive."""

from kvops.load import malformed
from kvops.load.injection import Case
from kvops.load.injector import InjectingUser
from kvops.load.locust_user import register

register(__file__)


class Breaker(InjectingUser):
    def plan(self) -> list[Case]:
        return malformed.cases(self.session.endpoint.model)
