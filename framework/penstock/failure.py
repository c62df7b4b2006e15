"""The ways a thing can go wrong, by who must act."""


class PenstockError(Exception):
    """Base of every error raised on purpose; the message names the thing and the remedy."""


class ConfigurationError(PenstockError):
    """The application cannot run as described: a person must change something. Never retried."""


class ProtocolViolation(PenstockError):
    """A peer or stored data broke a law of the protocol: the attempt is over, restore follows."""


class TransportFailed(PenstockError):
    """Kafka did not take or give records within its retries: the attempt is over."""


class StoreFailed(PenstockError):
    """The snapshot store did not answer as asked within its retries: the checkpoint fails."""


class CorruptedObject(StoreFailed):
    """An object is missing, shorter, longer or different from what its manifest says (L19)."""


class LostTransactions(PenstockError):
    """Transactions of a complete checkpoint that are neither open nor proven committed (L15)."""


class UserCodeFailed(PenstockError):
    """An exception out of a user's function, with the record's topic, partition and offset."""
