"""Shops with an HTTP API: an order and the job that mails its receipt commit together, or neither does."""

import os
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Annotated, Any

from fastapi import Body, Depends, FastAPI, HTTPException, Query
from sqlalchemy.ext.asyncio import AsyncSession, async_sessionmaker, create_async_engine
from sqlalchemy.orm import DeclarativeBase, Mapped, mapped_column

from treadle import Job, Tenant, Treadle
from treadle.integrations.fastapi import JobView, add_error_handlers, lifespan, tenant_of

engine = create_async_engine(os.environ["DATABASE_URL"])  # postgresql+asyncpg://user:password@host/database
Session = async_sessionmaker(engine)
jobs = Treadle(engine.url, auto_migrate=True)  # its tables are in the same database, in a schema of their own


class Base(DeclarativeBase): ...


class Order(Base):
    __tablename__ = "orders"
    id: Mapped[int] = mapped_column(primary_key=True)
    shop: Mapped[str]
    address: Mapped[str]
    cents: Mapped[int]


@jobs.task
async def send_receipt(order_id: int) -> str:
    async with Session() as session:
        order = await session.get_one(Order, order_id)  # it is there: it was committed with this job
    return f"receipt over {order.cents} cents sent to {order.address}"


@asynccontextmanager
async def own_lifespan(_: FastAPI) -> AsyncIterator[None]:
    async with engine.begin() as connection:
        await connection.run_sync(Base.metadata.create_all)
    yield
    await engine.dispose()  # by now the worker has stopped: no handler needs it


async def transaction() -> AsyncIterator[AsyncSession]:
    async with Session.begin() as session:
        yield session  # an exception in the request rolls everything back


# scope="function" commits before the answer is sent. Without it the client hears "201" even if the commit fails.
Transaction = Annotated[AsyncSession, Depends(transaction, scope="function")]
Shop = Annotated[Tenant, Depends(tenant_of(jobs, "X-Shop"))]  # a header that your gateway sets
EMBEDDED = bool(os.environ.get("EMBEDDED_WORKER"))  # then this process runs jobs too
api = FastAPI(lifespan=lifespan(jobs, own_lifespan, worker={"concurrency": 5} if EMBEDDED else False))
add_error_handlers(api)  # a job that is not there: 404; one that takes longer than `wait`: 504


@api.post("/orders", status_code=201)
async def place_order(
    address: Annotated[str, Body()], cents: Annotated[int, Body()], shop: Shop, session: Transaction
) -> dict[str, Any]:
    order = Order(shop=shop.name, address=address, cents=cents)
    session.add(order)
    await session.flush()  # now the order has its id
    job = await shop.using(send_receipt, tx=session).aenqueue(order.id)
    if cents > 100_000:
        raise HTTPException(402, "payment refused")  # neither the order nor the job stays
    return {"order": order.id, "job": job.id}


@api.get("/jobs/{job_id}", response_model=JobView, response_model_include={"state", "result", "error"})
async def show_job(job_id: str, shop: Shop, wait: Annotated[float, Query(ge=0, le=30)] = 0) -> Job:
    return await shop.await_for(job_id, timeout=wait) if wait else await shop.aget(job_id)
