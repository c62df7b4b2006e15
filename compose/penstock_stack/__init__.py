"""The local stack: a real Kafka and a real MinIO, for the demo, the benchmark and the tests."""

from penstock_stack.choice import start_any_stack
from penstock_stack.failure import StackError
from penstock_stack.stack import Stack, start_stack

__all__ = ["Stack", "StackError", "start_any_stack", "start_stack"]
