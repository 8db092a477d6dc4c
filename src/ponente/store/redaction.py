"""Secrets out of everything that is stored: configs, arguments, environments, URLs, logs.

In: any text or config value. Out: the same with each secret as `***`. What counts as one: a field, flag or variable
whose name says so, a value in the shape of a known key, the user part and signed parameters of a URL. `redact_value`
looks at nothing but its arguments, so identities may rest on it; a `Redactor` also knows this process's secrets.
"""

import re
from collections.abc import Iterable, Mapping
from functools import lru_cache
from urllib.parse import quote

MASK = "***"
SECRETS_VARIABLE = "PONENTE_SECRETS"  # names of other variables whose values are to be in no record

_SECRET_NAME = re.compile(
    r"(^|_)(api_?key|secret|secret_?key|access_?key(_?id)?|private_?key|account_?key|signing_?key|password|passwd|"
    r"passphrase|credentials?|authorization|bearer|(access|auth|api|refresh|session|bearer|hf|hub|hugging_?face|github|"
    r"gh|gitlab|slack|wandb|pypi|npm|security)_?token|cookie)(_file_contents)?$"
)
_TOKEN_NAME = re.compile(r"(token|auth)")  # `token: "</s>"` is none: a secret only if the value looks like one
_OPAQUE = re.compile(r"(?=[^\s]*[0-9])(?=[^\s]*[A-Za-z])[A-Za-z0-9_\-.+/=]{16,}")
_KNOWN_SHAPES = re.compile(
    r"\b(hf_[A-Za-z0-9]{16,}|sk-[A-Za-z0-9_\-]{16,}|gh[pousr]_[A-Za-z0-9]{20,}|github_pat_[A-Za-z0-9_]{20,}|"
    r"glpat-[A-Za-z0-9_\-]{16,}|xox[abprs]-[A-Za-z0-9\-]{10,}|(?:AKIA|ASIA)[0-9A-Z]{16}|AIza[0-9A-Za-z_\-]{30,}|"
    r"ya29\.[0-9A-Za-z_\-]{20,}|wandb_v1_[A-Za-z0-9_\-]{16,}|eyJ[A-Za-z0-9_\-]{10,}\.[A-Za-z0-9_\-]{10,}\.[A-Za-z0-9_\-]*)"
    r"|-----BEGIN [A-Z ]*PRIVATE KEY-----[\s\S]*?(?:-----END [A-Z ]*PRIVATE KEY-----|$)"
)
_URL_USER = re.compile(r"(?<=://)[^/?#\s'\"]+(?=@)")
_URL_PARAMETER = re.compile(r"(?<=[?&])([A-Za-z0-9_.\-]+)=([^&#\s'\"]+)")
_SECRET_PARAMETER = re.compile(  # of signed URLs too: X-Amz-Credential, AWSAccessKeyId, GoogleAccessId, sig
    r"token|auth|sig|.*(secret|signature|password|passwd|credentials?|api[_-]?key|access[_-]?(key([_-]?id)?|id)|"
    r"(access|auth|api|refresh|session|security|id)[_-]?token)",
    re.IGNORECASE,
)
_NAME = re.compile(r"-{0,2}[A-Za-z][\w.\-]*")
_NAMED = re.compile(  # password=…, 'api_key': '…', Authorization: Bearer …; bounded, for lines without end
    r"(?<![\w.\-])([A-Za-z][\w.\-]{2,60})(['\"]?\s{0,2}[:=]\s{0,2}(?:(?:Bearer|Basic) +)?)"
    r"('[^'\n]*'|\"[^\"\n]*\"|[^\s'\",;&)}\]]+)"
)
_VARIABLE_NAME = re.compile(r"(.*_token)|.*(_pass|_pwd|password|passwd)", re.IGNORECASE)  # but PWD is a folder
_SHORTEST_LITERAL = 6  # a shorter secret would blot out ordinary words
_SHORTEST_LINE = 16  # of a secret of many lines, such as a private key


@lru_cache(maxsize=1 << 14)
def is_secret_name(name: str) -> bool:
    """Whether a field, flag or variable of this name holds a secret, whatever its value."""
    return _SECRET_NAME.search(_snake(name)) is not None


@lru_cache(maxsize=1 << 14)
def may_be_secret_name(name: str) -> bool:
    """Whether a field of this name holds a secret if its value is opaque (`token`, but not `token="</s>"`)."""
    return _TOKEN_NAME.fullmatch(_snake(name)) is not None


def _snake(name: str) -> str:
    spaced = re.sub(r"(?<=[a-z0-9])(?=[A-Z])", "_", name.lstrip("-"))
    return spaced.lower().replace("-", "_").replace(".", "_")


def redact_text(text: str) -> str:
    """`text` without the secrets that can be told from it alone."""
    if "://" in text:
        text = _URL_PARAMETER.sub(_masked_parameter, _URL_USER.sub(MASK, text))
    return _KNOWN_SHAPES.sub(MASK, text) if len(text) >= 14 else text


def _is_secret_parameter(name: str, value: str) -> bool:
    if _SECRET_PARAMETER.fullmatch(name):
        return True
    return name.lower().endswith(("key", "token")) and _OPAQUE.fullmatch(value.replace("%", "")) is not None


def _masked_pair(match: re.Match[str]) -> str:
    name, between, value = match.groups()
    if not is_secret_name(name):
        return match.group()
    quote_mark = value[0] if value[0] in "'\"" else ""
    return f"{name}{between}{quote_mark}{MASK}{quote_mark}"


def _masked_parameter(match: re.Match[str]) -> str:
    name, value = match.groups()
    return f"{name}={MASK}" if _is_secret_parameter(name, value) else match.group()


def redact_value(name: str, value: str) -> str:
    """The value of a field called `name`, redacted by its name and by its shape."""
    if value and (is_secret_name(name) or (may_be_secret_name(name) and _OPAQUE.fullmatch(value))):
        return MASK
    return redact_text(value)


def secrets_of(name: str, value: str) -> list[str]:
    """The secrets that `redact_value` would mask."""
    if redact_value(name, value) == MASK:
        return [value]
    return _secrets_of_url(value) + [match.group() for match in _KNOWN_SHAPES.finditer(value)]


class Redactor:
    """Removes known secrets, by value, besides what can be told from the text alone.

    It learns values from the environment, from arguments and from configs, and then cleans every record and log line.
    """

    def __init__(self, secrets: Iterable[str] = ()) -> None:
        self._secrets: set[str] = set()
        self._pattern: re.Pattern[str] | None = None
        self.learn(secrets)

    @classmethod
    def of_process(cls, environ: Mapping[str, str], argv: list[str]) -> "Redactor":
        """A redactor that knows the secrets among these variables and arguments."""
        redactor = cls()
        redactor.learn_mapping(environ)
        named = environ.get(SECRETS_VARIABLE, "").split(",")
        redactor.learn(environ[name] for name in named if name in environ)
        redactor.learn(_secret_arguments(argv))
        return redactor

    @property
    def secrets(self) -> list[str]:
        """What it knows, so that a step's own process can know it too. Never stored."""
        return sorted(self._secrets)

    def learn(self, secrets: Iterable[str]) -> None:
        """Remembers values; those too short to be told from ordinary words are left out."""
        new = {secret.strip() for secret in secrets if len(secret.strip()) >= _SHORTEST_LITERAL}
        if new <= self._secrets:
            return
        self._secrets |= new
        longest_first = sorted({form for secret in self._secrets for form in _forms(secret)}, key=len, reverse=True)
        self._pattern = re.compile("|".join(map(re.escape, longest_first))) if longest_first else None

    def learn_mapping(self, values: Mapping[str, str]) -> None:
        """Remembers the values of those variables that hold a secret, and the user parts of URLs."""
        self.learn(secret for name, value in values.items() for secret in _secrets_of_variable(name, value))

    def text(self, text: str) -> str:
        """`text` without secrets: those it knows, those in a known shape, and what follows a name that says so."""
        return _NAMED.sub(_masked_pair, redact_text(self._without_known(text)))

    def _without_known(self, text: str) -> str:
        return self._pattern.sub(MASK, text) if self._pattern is not None else text

    def payload(self, value: object) -> object:
        """A payload without the secrets it knows. Names and shapes were looked at before it was hashed."""
        if isinstance(value, str):
            return self._without_known(value)
        if isinstance(value, Mapping):
            return {redact_text(self._without_known(key)): self.payload(item) for key, item in value.items()}
        if isinstance(value, list):
            return [self.payload(item) for item in value]
        return value

    def value(self, value: object, name: str = "") -> object:
        """A JSON value without secrets, in keys and values, at any depth; `name` is what it stands under."""
        if isinstance(value, str):
            return redact_value(name, self.text(value))
        if isinstance(value, Mapping):
            inherits = is_secret_name(name) and not any(str(key).startswith("$") for key in value)  # "$type": …
            return {
                self.text(str(key)): self.value(item, name if inherits else str(key)) for key, item in value.items()
            }
        if isinstance(value, list | tuple):
            return [self.value(item, name) for item in value]
        return value

    def arguments(self, argv: list[str]) -> list[str]:
        """Arguments without secrets: `--token X`, `--token=X`, `--env_vars NAME X`, URLs."""
        hidden = set(_secret_arguments(argv))
        clean = []
        for argument in argv:
            name, equals, value = argument.partition("=")
            if equals and value in hidden:
                clean.append(f"{name}={MASK}")
            else:
                clean.append(MASK if argument in hidden else self.text(argument))
        return clean


def may_be_masked(stored: object, value: object) -> bool:
    """Whether a stored JSON value may be `value` with some secrets masked: a mask stands for anything."""
    if isinstance(stored, str) and isinstance(value, str) and MASK in stored:
        return re.fullmatch(re.escape(stored).replace(re.escape(MASK), ".*"), value, re.DOTALL) is not None
    if isinstance(stored, dict) and isinstance(value, dict):
        if stored.keys() == value.keys():
            return all(may_be_masked(stored[key], value[key]) for key in stored)
        return may_be_masked(list(map(list, stored.items())), list(map(list, value.items())))
    if isinstance(stored, list) and isinstance(value, list):
        return len(stored) == len(value) and all(map(may_be_masked, stored, value))
    return repr(stored) == repr(value)  # and nan is nan


def _secret_arguments(argv: list[str]) -> list[str]:
    found: list[str] = []
    for position, argument in enumerate(argv):
        name, equals, value = argument.partition("=")
        following = argv[position + 1] if position + 1 < len(argv) else ""
        if equals and redact_value(name, value) == MASK:
            found.append(value)
        elif _NAME.fullmatch(argument) and not following.startswith("-") and redact_value(name, following) == MASK:
            found.append(following)
        found += _secrets_of_url(argument)
    return found


def _secrets_of_variable(name: str, value: str) -> list[str]:
    """As `secrets_of`, and more: no identity rests on the environment, so a false alarm costs little."""
    found = _VARIABLE_NAME.fullmatch(name)
    if found and (not found.group(1) or _OPAQUE.fullmatch(value)):
        return [value]
    return secrets_of(name, value)


def _forms(secret: str) -> set[str]:
    """A secret as it may stand in a text: as it is, line by line, as Python writes it, as a URL holds it."""
    lines = {line.strip() for line in secret.splitlines()}
    return {secret, repr(secret)[1:-1], quote(secret, safe="")} | {one for one in lines if len(one) >= _SHORTEST_LINE}


def _secrets_of_url(text: str) -> list[str]:
    if "://" not in text:
        return []
    users = [user.group().partition(":")[2] or user.group() for user in _URL_USER.finditer(text)]
    parameters = [match.groups() for match in _URL_PARAMETER.finditer(text)]
    return users + [value for name, value in parameters if _is_secret_parameter(name, value)]
