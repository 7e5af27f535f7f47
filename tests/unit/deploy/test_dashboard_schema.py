"""The dashboards have the fields of Grafana's dashboards (schema version 39), as they are transcribed here.

The schema itself is not part of this repository, and no Grafana reads the files: a mistake of the transcription, or a
change of Grafana, is not noticed.
"""

from pathlib import Path
from typing import Annotated, Any, Literal

import msgspec
import pytest
from msgspec import Meta

from deploy.monitoring.dashboards import DIRECTORY, WIDTH


class Strict(msgspec.Struct, forbid_unknown_fields=True, kw_only=True, rename="camel"):
    pass


class DataSource(Strict):
    type: Literal["prometheus"]
    uid: Literal["${datasource}"]


class Place(Strict):
    x: Annotated[int, Meta(ge=0, lt=WIDTH)]
    y: Annotated[int, Meta(ge=0)]
    w: Annotated[int, Meta(gt=0, le=WIDTH)]
    h: Annotated[int, Meta(gt=0)]


class Target(Strict):
    ref_id: Annotated[str, Meta(pattern="^[A-Z]$")]
    datasource: DataSource
    expr: Annotated[str, Meta(min_length=1)]
    legend_format: str


class Defaults(Strict):
    unit: Annotated[str, Meta(min_length=1)]
    custom: dict[str, Any]


class FieldConfig(Strict):
    defaults: Defaults
    overrides: Annotated[list[Any], Meta(max_length=0)]


class Legend(Strict):
    display_mode: Literal["list", "table", "hidden"]
    placement: Literal["bottom", "right"]
    show_legend: bool
    calcs: list[str]


class Tooltip(Strict):
    mode: Literal["single", "multi", "none"]
    sort: Literal["asc", "desc", "none"]


class Lines(Strict):
    legend: Legend
    tooltip: Tooltip


class Reduced(Strict):
    calcs: list[str]


class Stat(Strict):
    reduce_options: Reduced
    text_mode: Literal["auto", "value", "value_and_name", "name", "none"]
    graph_mode: Literal["none", "line", "area"]
    color_mode: Literal["value", "background", "background_solid", "none"]
    justify_mode: Literal["auto", "center"]
    orientation: Literal["auto", "vertical", "horizontal"]
    percent_change_color_mode: Literal["standard", "inverted", "same_as_value"]
    show_percent_change: bool
    wide_layout: bool


class _Panel(Strict):
    id: Annotated[int, Meta(gt=0)]
    title: Annotated[str, Meta(min_length=1)]
    description: str
    datasource: DataSource
    grid_pos: Place
    field_config: FieldConfig
    targets: Annotated[list[Target], Meta(min_length=1)]


class LinesPanel(_Panel, tag_field="type", tag="timeseries"):
    options: Lines


class StatPanel(_Panel, tag_field="type", tag="stat"):
    options: Stat


class SourceVariable(Strict, tag_field="type", tag="datasource"):
    name: str
    label: str
    query: Literal["prometheus"]


class Query(Strict):
    query: str
    ref_id: str


class Current(Strict):
    selected: bool
    text: list[str]
    value: list[str]


class QueryVariable(Strict, tag_field="type", tag="query"):
    name: str
    label: str
    datasource: DataSource
    query: Query
    definition: str
    refresh: Literal[0, 1, 2]
    sort: Annotated[int, Meta(ge=0, le=8)]
    multi: bool
    include_all: bool
    all_value: str
    current: Current


class Variables(Strict):
    list: list[SourceVariable | QueryVariable]


class Link(Strict):
    type: Literal["link", "dashboards"]
    tags: list[str]
    title: str
    icon: str
    tooltip: str
    as_dropdown: bool
    keep_time: bool
    include_vars: bool
    target_blank: bool


class Annotations(Strict):
    list: list[Any]


class Range(Strict):
    begin: str = msgspec.field(name="from")
    to: str


class Document(Strict):
    uid: Annotated[str, Meta(pattern="^[a-z-]{1,40}$")]
    title: Annotated[str, Meta(min_length=1)]
    tags: list[str]
    schema_version: Literal[39]
    version: int
    editable: bool
    refresh: str
    time: Range
    timezone: Literal["browser", "utc"]
    templating: Variables
    links: list[Link]
    annotations: Annotations
    panels: Annotated[list[LinesPanel | StatPanel], Meta(min_length=1)]


FILES = sorted(DIRECTORY.glob("*.json"))


@pytest.mark.parametrize("file", FILES, ids=lambda each: each.stem)
def test_a_dashboard_is_what_the_schema_allows(file: Path) -> None:
    document = msgspec.json.decode(file.read_bytes(), type=Document)
    assert len({panel.id for panel in document.panels}) == len(document.panels)
    taken = {(panel.grid_pos.x + x, panel.grid_pos.y) for panel in document.panels for x in range(panel.grid_pos.w)}
    assert len(taken) == sum(panel.grid_pos.w for panel in document.panels), "panels lie on each other"


@pytest.mark.parametrize(("right", "wrong"), [('"expr"', '"expression"'), ('"multi"', '"many"'), ('"stat"', '"stats"')])
def test_what_it_does_not_allow_is_noticed(right: str, wrong: str) -> None:
    text = (DIRECTORY / "cluster.json").read_text()
    assert right in text
    with pytest.raises(msgspec.ValidationError):
        msgspec.json.decode(text.replace(right, wrong), type=Document)
