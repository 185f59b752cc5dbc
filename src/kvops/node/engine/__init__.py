"""The synchronous core: requests, block pool, scheduler, runner, sampler. No sockets, no asyncio, no HTTP."""
