"""The savepoint: state as open tables that anybody reads, and the way back into a service."""
