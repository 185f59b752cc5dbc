"""Noisy tenant: a quiet tenant alone, then beside others that ask for as much as they can get."""

from kvops.load import priorities
from kvops.load.client import Client
from kvops.load.fairness import ALONE, BESIDE, ROLES, tenants
from kvops.load.locust_user import plain_answer, register
from kvops.load.phased_user import PhasedUser, answer_or_refusal, wait_as_told
from kvops.load.phases import Timetable
from kvops.load.workload import prompt, source_of

register(__file__)

ROLE = ROLES["noisy_tenant"]


class Tenant(PhasedUser):
    """The first users are the quiet tenant's, the others make noise.

    With keys each side has its own. Without, the noise is of the batch class where the node knows classes.
    """

    asked = 0

    def on_start(self) -> None:
        options = self.session.options
        self.quiet = self.number < options["quiet_users"]
        keys = tenants(options["tenant_keys"], options["quiet"])
        key = keys.quiet if self.quiet else keys.key_of_noise(self.number)
        if key is not None:
            self.client = Client(self.session.info.target, api_key=key)
        self.batch = key is None and not self.quiet

    def timetable(self) -> Timetable:
        seconds = self.session.options["phase_seconds"]
        return Timetable.of((ALONE, seconds), (BESIDE, seconds))

    def act(self, phase: str) -> None:
        options = self.session.options
        if self.quiet:
            self.send(ROLE.name(phase), options["quiet_tokens"], options["quiet_max_tokens"])
        elif phase == BESIDE:
            self.send(ROLE.pressing, options["noisy_tokens"], options["max_tokens"])
        else:
            self.rest()

    def send(self, name: str, tokens: int, most: int) -> None:
        source = source_of("tenant", self.session.seed, self.number, self.asked)
        self.asked += 1
        fields = priorities.fields(self, "batch") if self.batch else {}
        got = self.chat(
            prompt(source, tokens), max_tokens=most, name=name, asked_input=tokens, ignore_eos=True,
            judge=plain_answer if self.quiet else answer_or_refusal, **fields,
        )  # fmt: skip
        wait_as_told(self, got)
