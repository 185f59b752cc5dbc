"""Malformed input: one user sends each broken request, then a canary, then asks whether the node is alive."""

from kvops.load import injection, malformed
from kvops.load.injector import InjectingUser
from kvops.load.locust_user import register

register(__file__)


class Breaker(InjectingUser):
    def plan(self) -> list[injection.Case]:
        contract = injection.has_contract(self.session.info.before)
        return malformed.cases(self.session.endpoint.model, contract=contract)
