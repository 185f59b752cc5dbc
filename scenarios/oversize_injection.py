"""Oversize injection: one user sends each oversized request, then a canary, then asks whether the node is alive."""

from collections.abc import Iterator

from kvops.load import injection
from kvops.load.injector import InjectingUser
from kvops.load.locust_user import register

register(__file__)


class Injector(InjectingUser):
    def plan(self) -> Iterator[injection.Case]:
        endpoint, options = self.session.endpoint, self.session.options
        longest = options["max_prompt_tokens"]
        if endpoint.max_model_len is not None:
            for case in injection.length_cases(
                endpoint.model,
                endpoint.max_model_len,
                seed=self.session.seed,
                contract=injection.has_contract(self.session.info.before),
            ):
                if longest is None or case.prompt_tokens is None or case.prompt_tokens <= longest:
                    yield case
        yield from injection.size_cases(endpoint.model, options["body_bytes"])
