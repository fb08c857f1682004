"""Why a rollout is given up, other than for what the canary does; as people are told it."""

ANOTHER = "another version of it is rolled out instead"
AT_ONCE = "a file was applied that changes it at once"
AS_IT_WAS = "a file was applied that has its settings as they were"
REMOVED = "a file was applied that has not the model"
BY_HAND = "ended by hand"
STILL_IN_FILE = (
    "where the file still has the new version, a server that starts serves it at once: "
    "`headrace diff FILE` shows it"
)


def why_given_up(*, removed: bool, begun: bool, changed: bool) -> str:
    """What the file that was applied does to the model: lacks it, begins another rollout of it, or
    changes the live version's replicas."""
    if begun:
        return ANOTHER
    if removed:
        return REMOVED
    return AT_ONCE if changed else AS_IT_WAS
