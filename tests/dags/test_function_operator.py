"""A function as a task: it shows, maps and answers as one of Airflow's own ``@task`` does."""

from typing import Any

import pytest
from airflow.sdk import DAG, task
from airflow.sdk.definitions.xcom_arg import XComArg
from airflow.serialization.serialized_objects import DagSerialization

from redrive.airflow import function_operator

#: Where the two may differ: what they are, and a field of the other's that no task of ours fills.
_OWN = {"_task_module", "task_type", "template_fields", "template_fields_renderers"}


def _begin(route: str) -> dict[str, Any]:
    """Begins."""
    return {"route": route}


def _send(run: dict[str, Any], shard: int, shards: int) -> str:
    """Sends."""
    return f"{run['route']} {shard} of {shards}"


def _dag(decorate: Any) -> DAG:
    with DAG("one", schedule=None, default_args={"retries": 3, "pool": "narrow"}) as dag:
        run = decorate(_begin, task_id="begin", multiple_outputs=False, retries=1)("orders")
        send = decorate(_send, task_id="send", multiple_outputs=False)
        whole = send.override(task_id="whole", trigger_rule="none_failed")(run, shard=0, shards=1)
        sent = send.partial(run=run).expand_kwargs([{"shard": 0, "shards": 2}, {"shard": 1, "shards": 2}])
        [whole, sent] >> decorate(_begin, task_id="finish")("orders").as_teardown(setups=run)
    return dag


@pytest.fixture
def dag() -> DAG:
    return _dag(function_operator.task)


def test_the_scheduler_and_the_pages_find_what_airflows_own_would_be(dag: DAG) -> None:
    ours, airflows = (
        {one["__var"]["task_id"]: one["__var"] for one in DagSerialization.to_dict(made)["dag"]["tasks"]}
        for made in (dag, _dag(task))
    )
    assert ours.keys() == airflows.keys() == {"begin", "send", "whole", "finish"}
    for name, found in ours.items():
        assert {key: value for key, value in found.items() if key not in _OWN} == {
            key: value for key, value in airflows[name].items() if key not in _OWN
        }


def test_a_function_gets_what_it_was_given(dag: DAG) -> None:
    assert dag.get_task("begin").execute({}) == {"route": "orders"}
    whole = dag.get_task("whole")
    assert isinstance(whole.op_args[0], XComArg), "which Airflow resolves, as a template"
    assert "op_args" in whole.template_fields


def test_one_of_several_gets_its_own_part(dag: DAG) -> None:
    send = dag.get_task("send").unmap({"op_kwargs": {"shard": 1, "shards": 2}})
    assert {"op_args", "op_kwargs"} <= {*send.template_fields}
    send.op_kwargs = {**send.op_kwargs, "run": {"route": "orders"}}
    assert send.execute({}) == "orders 1 of 2"
