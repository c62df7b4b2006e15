"""What keeps the main job from reaching a verdict."""


class JobFailed(RuntimeError):
    """The job cannot go on: an application ended, or nothing moves any more."""
