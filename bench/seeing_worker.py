"""`python -m bench.seeing_worker`: the shipped worker with the benchmark's agent, by its environment."""

import asyncio

from bench.thread_agents import reader
from everlong.config import load_settings
from everlong.worker import run_worker

if __name__ == "__main__":
    asyncio.run(run_worker(load_settings(), [reader()]))
