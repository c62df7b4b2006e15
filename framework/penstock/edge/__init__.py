"""How a record reaches the next service: key groups, partition choice, frames. Pure."""
