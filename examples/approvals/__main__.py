"""Ask for refunds, and decide about them as a program of the shop would."""

import uuid

from temporalio.client import Client
from temporalio.envconfig import ClientConnectConfig

from everlong import EverlongPlugin, thread
from examples.environment import run


async def main(config: ClientConnectConfig, store: str) -> None:
    client = await Client.connect(**config, plugins=[EverlongPlugin(store=store)])
    shop = thread(client, f"shop-{uuid.uuid4().hex[:6]}")
    print(f"thread {shop.id}")

    async def decide(text: str, *, approve: bool, reason: str) -> str:
        number = await shop.send(text)
        # The call waits in the thread: for days, if need be, and across restarts of workers.
        await shop.wait_until(lambda progress: progress.pending > 0)
        [approval] = await shop.approvals()
        print(f"? {approval.tool} {await shop.arguments(approval)}")
        await shop.decide(approval.id, approve=approve, by="kim", reason=reason)
        return await shop.wait(number)

    print("small:   ", await shop.ask("Refund 40 USD for order A-17.", agent="shop"))
    text = "Refund 400 USD for order A-18."
    print("approved:", await decide(text, approve=True, reason="the parcel is lost"))
    text = "Refund 4000 USD for order A-19."
    print("denied:  ", await decide(text, approve=False, reason="the order was for 40 USD"))
    print("deadline:", await shop.ask("Close the account of customer K-3."))


if __name__ == "__main__":
    run(main)
