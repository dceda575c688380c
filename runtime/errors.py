"""The one error of this folder.

    SettingError    a setting or the machine it runs on is not as needed

It knows nothing of the wire's errors: `esker.wire.errors` stands above this folder.
"""


class SettingError(ValueError):
    """A value from the user or the environment cannot be used. The message is one line that says what to do."""
