"""Every switch that keeps libraries and programs from hubs, telemetry and update checks, in one place.

Invariant (I10): each process of Corral and each of its children runs with all of them, whatever the user's own
environment says. Harnesses' own switches are data of their files under harnesses/; their sandboxes have no network.
"""

from __future__ import annotations

import os
from collections.abc import Mapping, MutableMapping

SWITCHES: dict[str, str] = {
    # hubs of models and data sets
    "HF_HUB_OFFLINE": "1",
    "TRANSFORMERS_OFFLINE": "1",
    "HF_DATASETS_OFFLINE": "1",
    # telemetry
    "DO_NOT_TRACK": "1",
    "HF_HUB_DISABLE_TELEMETRY": "1",
    "VLLM_NO_USAGE_STATS": "1",
    "VLLM_DO_NOT_TRACK": "1",
    "RAY_USAGE_STATS_ENABLED": "0",
    "WANDB_MODE": "disabled",
    "OTEL_SDK_DISABLED": "true",
    # update checks
    "PIP_DISABLE_PIP_VERSION_CHECK": "1",
    "NO_UPDATE_NOTIFIER": "1",
    "npm_config_update_notifier": "false",
}


def switch_off(environment: MutableMapping[str, str] | None = None) -> None:
    """Sets every switch in `environment`, by default this process's own, which its children inherit."""
    (os.environ if environment is None else environment).update(SWITCHES)


def still_on(environment: Mapping[str, str]) -> list[str]:
    """Names of the switches that `environment` lacks or sets otherwise."""
    return [name for name, value in SWITCHES.items() if environment.get(name) != value]
