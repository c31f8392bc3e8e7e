"""A shop with an HTTP API: an order and the job that mails its receipt commit together, or neither does."""

import os
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager, nullcontext
from typing import Annotated, Any

from fastapi import Body, Depends, FastAPI, HTTPException
from sqlalchemy.ext.asyncio import AsyncSession, async_sessionmaker, create_async_engine
from sqlalchemy.orm import DeclarativeBase, Mapped, mapped_column

from treadle import JobNotFound, Treadle

URL = os.environ["DATABASE_URL"]  # postgresql://user:password@host/database
engine = create_async_engine(URL.replace("postgresql:", "postgresql+asyncpg:", 1))
Session = async_sessionmaker(engine)
jobs = Treadle(URL, auto_migrate=True)  # its tables are in the same database, in a schema of their own


class Base(DeclarativeBase): ...


class Order(Base):
    __tablename__ = "orders"
    id: Mapped[int] = mapped_column(primary_key=True)
    address: Mapped[str]
    cents: Mapped[int]


@jobs.task
async def send_receipt(order_id: int) -> str:
    async with Session() as session:
        order = await session.get_one(Order, order_id)  # it is there: it was committed with this job
    return f"receipt over {order.cents} cents sent to {order.address}"


@asynccontextmanager
async def lifespan(_: FastAPI) -> AsyncIterator[None]:
    jobs.open()  # what is wrong with the store is said at the start, not by the first request
    async with engine.begin() as connection:
        await connection.run_sync(Base.metadata.create_all)
    embedded = os.environ.get("EMBEDDED_WORKER")  # then this process runs jobs too
    async with jobs.worker(concurrency=5) if embedded else nullcontext():
        yield
    await engine.dispose()
    jobs.close()


async def transaction() -> AsyncIterator[AsyncSession]:
    async with Session.begin() as session:
        yield session  # an exception in the request rolls everything back


# scope="function" commits before the answer is sent. Without it the client hears "201" even if the commit fails.
Transaction = Annotated[AsyncSession, Depends(transaction, scope="function")]
api = FastAPI(lifespan=lifespan)


@api.post("/orders", status_code=201)
async def place_order(
    address: Annotated[str, Body()], cents: Annotated[int, Body()], session: Transaction
) -> dict[str, Any]:
    order = Order(address=address, cents=cents)
    session.add(order)
    await session.flush()  # now the order has its id
    job = await send_receipt.using(tx=session).aenqueue(order.id)
    if cents > 100_000:
        raise HTTPException(402, "payment refused")  # neither the order nor the job stays
    return {"order": order.id, "job": job.id}


@api.get("/jobs/{job_id}")
def show_job(job_id: str) -> dict[str, Any]:
    try:
        job = jobs.get(job_id)
    except JobNotFound as error:
        raise HTTPException(404, str(error)) from error
    return {"state": job.state, "result": job.result}
