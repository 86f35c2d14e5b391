"""Tasks that are functions, as ``airflow.sdk.task`` makes them, in less of the time of a parse.

Airflow's own operator for them is five classes deep. Each of the five looks through the arguments of every task anew,
and one binds them to the function, so a parse of thousands of DAGs spent a fifth of its time there.
"""

from collections.abc import Callable, Collection, Mapping
from typing import Any, ClassVar

from airflow.sdk import BaseOperator
from airflow.sdk.bases.decorator import task_decorator_factory


class FunctionOperator(BaseOperator):  # type: ignore[misc]  # Airflow has no types for mypy
    """Calls a function with what it was given, in which XComs are resolved and templates rendered.

    A function that wants Airflow's context asks for it; none is handed in.
    """

    template_fields: ClassVar = ("op_args", "op_kwargs")
    template_fields_renderers: ClassVar = {"op_args": "py", "op_kwargs": "py"}
    shallow_copy_attrs: ClassVar = ("python_callable",)
    #: What Airflow's pages call it, and its color there: those of ``@task``.
    custom_operator_name = "@task"
    ui_color = "#ffefeb"

    def __init__(
        self,
        *,
        python_callable: Callable[..., object],  # these names are Airflow's, which maps over the last
        op_args: Collection[Any] = (),
        op_kwargs: Mapping[str, Any] | None = None,
        **options: Any,
    ) -> None:
        super().__init__(**options)
        self.python_callable = python_callable
        self.op_args = op_args
        self.op_kwargs = op_kwargs or {}

    def execute(self, context: Any) -> object:
        """The function's answer is the task's XCom."""
        del context
        answer = self.python_callable(*self.op_args, **self.op_kwargs)
        self.log.info("Done. Returned value was: %s", answer)
        return answer


def task(function: Callable[..., object], **options: Any) -> Any:
    """``function`` as a task with these options; to be called, mapped and overridden like ``@task``'s."""
    return task_decorator_factory(function, decorated_operator_class=FunctionOperator, **options)
