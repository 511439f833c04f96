"""The section `stop` of a search file: when a study ends before its last trial."""

from __future__ import annotations

from hopyard.config import units
from hopyard.config.schemas.studies import StopRulesIn
from hopyard.config.section_values import read_field
from hopyard.config.yaml_section import YamlSection
from hopyard.domain.study import StopRules


def read_stop_rules(top: YamlSection) -> StopRules:
    """Raises SpecError."""
    section = top.section("stop").check_keys("time", "target", "patience")
    return StopRules(
        time_s=section.amount("time", units.parse_time) or 0.0,
        target=read_field(section, "target", StopRulesIn),
        patience=read_field(section, "patience", StopRulesIn),
    )
