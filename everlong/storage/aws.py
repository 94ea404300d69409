"""AWS configuration of S3 stores: credentials, profiles, roles, regions, certificates.

The only module that imports botocore. It is imported when a store at `s3://` is opened: botocore takes
a fifth of a second to import, and no other store needs it.
"""

import dataclasses
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import TYPE_CHECKING, Final, cast
from urllib.parse import urlsplit

import botocore.session
from botocore.credentials import Credentials, RefreshableCredentials
from botocore.exceptions import (
    BotoCoreError,
    ConfigNotFound,
    ConfigParseError,
    InvalidConfigError,
    PartialCredentialsError,
    ProfileNotFound,
)

from everlong.errors import ConfigError, StoreUnavailable
from everlong.storage.buckets import S3_FURTHER, BucketURL, describe_setup_failure

if TYPE_CHECKING:  # obstore has these types only for type checkers.
    from obstore.store import S3Config, S3Credential

# obstore asks for new credentials when its own expire within 300 s. botocore renews temporary ones at
# least 600 s before they expire, so expired credentials are never used.
_OBSTORE_MARGIN_SECONDS: Final = 300.0
_KEYS_SECONDS: Final = 60.0
_ANY_REGION: Final = "us-east-1"  # For servers other than AWS, which have no regions.


@dataclasses.dataclass(frozen=True)
class AwsAccess:
    """Settings of an S3 client of obstore."""

    keys: "AwsKeys"
    config: "S3Config"
    authorities: bytes | None
    """Certificates of trusted authorities, in PEM; None for the system's."""


def read_aws_access(place: BucketURL) -> AwsAccess:
    """Read the AWS configuration for a bucket. Missing keys raise `ConfigError`."""
    keys = AwsKeys(place)
    keys()  # Raises a clearer error than obstore if there are no credentials.
    try:
        session = open_session(place)
        return AwsAccess(keys, build_s3_config(place, session), _read_ca_bundle(place, session))
    except BotoCoreError as error:
        raise describe_setup_failure(place, error) from None


class AwsKeys:
    """Provides obstore's credentials. obstore calls it once a minute, from any OS thread."""

    def __init__(self, place: BucketURL) -> None:
        self._place = place
        self._keys: Credentials | None = None

    def __call__(self) -> "S3Credential":
        """Return the current credentials. Fixed ones are read again, so a new file needs no restart."""
        try:
            if not isinstance(self._keys, RefreshableCredentials):
                self._keys = open_session(self._place).get_credentials()
            frozen = None if self._keys is None else self._keys.get_frozen_credentials()
        except BotoCoreError as error:
            raise _translate_error(self._place, error) from None
        if frozen is None or not frozen.access_key or not frozen.secret_key:
            raise ConfigError(
                f"there are no AWS credentials for {self._place}. Set AWS_ACCESS_KEY_ID and "
                "AWS_SECRET_ACCESS_KEY, name a profile in AWS_PROFILE, or give this machine a role."
            )
        return {
            "access_key_id": frozen.access_key,
            "secret_access_key": frozen.secret_key,
            "token": frozen.token,
            "expires_at": datetime.now(UTC)
            + timedelta(seconds=_OBSTORE_MARGIN_SECONDS + _KEYS_SECONDS),
        }


def open_session(place: BucketURL) -> botocore.session.Session:
    """Return a session that reads the AWS configuration as it is now."""
    return botocore.session.Session(profile=place.options.get("profile"))


def build_s3_config(place: BucketURL, session: botocore.session.Session) -> "S3Config":
    """Return obstore's settings: endpoint, region, style of addresses, and further options."""
    region, endpoint = _find_region_and_endpoint(place, session)
    address = urlsplit(endpoint)
    aws = (address.hostname or "").endswith((".amazonaws.com", ".amazonaws.com.cn"))
    path_style = place.flag("path_style")
    if path_style is None:
        # AWS certificates do not match a host name that contains a bucket name with a dot.
        path_style = not aws or "." in place.bucket
    if not path_style:
        endpoint = address._replace(netloc=f"{place.bucket}.{address.netloc}").geturl()
    further = {name: place.options[name] for name in S3_FURTHER if name in place.options}
    return {
        **cast("S3Config", further),
        "region": region,
        # obstore would otherwise take the second one from the environment.
        "endpoint": endpoint,
        "aws_endpoint_url_s3": endpoint,
        "virtual_hosted_style_request": not path_style,
        "skip_signature": False,
    }


def _find_region_and_endpoint(
    place: BucketURL, session: botocore.session.Session
) -> tuple[str, str]:
    """Return region and endpoint, from the URL or else from the AWS configuration."""
    if "endpoint" in place.options:
        region = place.options.get("region") or session.get_config_variable("region")
        return region or _ANY_REGION, place.options["endpoint"].rstrip("/")
    client = session.create_client(
        "s3",
        region_name=place.options.get("region"),
        # Only the client's endpoint is used: no request is made with these.
        aws_access_key_id="unused",
        aws_secret_access_key="unused",  # noqa: S106 - see above
    )
    endpoint = str(client.meta.endpoint_url).rstrip("/")
    if endpoint.startswith("http://"):
        raise ConfigError(
            f"the endpoint that the AWS configuration names for {place} speaks plain http. If the "
            "network is private, write it into the store's URL: endpoint=http://host:port"
        )
    return client.meta.region_name or _ANY_REGION, endpoint


def _read_ca_bundle(place: BucketURL, session: botocore.session.Session) -> bytes | None:
    """Return the certificates that AWS_CA_BUNDLE or a profile's `ca_bundle` names, as AWS tools do."""
    name = session.get_config_variable("ca_bundle")
    if not name:
        return None
    try:
        return Path(name).read_bytes()
    except OSError as error:
        raise ConfigError(
            f"the file of certificates that AWS_CA_BUNDLE names cannot be read: {error.strerror}. "
            f"Correct it, or unset it: {place} needs it only for certificates of a private authority."
        ) from error


def _translate_error(place: BucketURL, error: BotoCoreError) -> ConfigError | StoreUnavailable:
    # The text of these errors is not quoted: it may hold the output of a credential process.
    if isinstance(error, ProfileNotFound):
        return ConfigError(
            f"the AWS profile for {place} is not in the AWS configuration files. Add it there, or "
            "name another one: profile=... in the store's URL, or AWS_PROFILE."
        )
    if isinstance(error, PartialCredentialsError):
        return ConfigError(
            f"the AWS credentials for {place} are not complete. Set both AWS_ACCESS_KEY_ID and "
            "AWS_SECRET_ACCESS_KEY, or both lines of the profile."
        )
    if isinstance(error, ConfigParseError | ConfigNotFound | InvalidConfigError):
        return ConfigError(
            f"the AWS configuration files for {place} cannot be read ({type(error).__name__}). "
            "Correct them; `aws configure list` shows where they are."
        )
    return StoreUnavailable(
        f"no AWS credentials are available for {place} ({type(error).__name__}). Check the profile, the "
        "role or the single sign-on that provides them."
    )
