"""One table knows the columns of a prompt row; what spells them out agrees with it."""

from dataclasses import fields

from imagekiln.steps.checks import ImageSpec
from imagekiln.steps.job.columns import (
    GUIDANCE,
    GUIDANCE_RESCALE,
    IDENTITY_COLUMNS,
    IMAGES_PER_ROW,
    PROMPT_COLUMNS,
    RESERVED_COLUMNS,
    STEPS,
    Bounds,
)
from imagekiln.steps.job.rows import ColumnNames, RowDefaults
from imagekiln.steps.plan.catalog import ImageGroup
from imagekiln.steps.runs import tables
from imagekiln.steps.runs.image import BatchShape, ImageParameters
from imagekiln.steps.runs.tables import IMAGE_ROW_SCHEMA

NAMES = [column.name for column in PROMPT_COLUMNS]
IDENTITY = [column.name for column in IDENTITY_COLUMNS]
SHAPE = {column.name for column in PROMPT_COLUMNS if column.in_shape} | {"input_images"}


def _field_names(kind: type) -> list[str]:
    return [field.name for field in fields(kind)]


def _bounds(setting: str) -> Bounds:
    schema = RowDefaults.model_json_schema()["properties"][setting]
    number = schema["anyOf"][0] if "anyOf" in schema else schema
    return Bounds(int(number["minimum"]), int(number["maximum"]))


def test_every_column_may_have_another_name_in_the_input() -> None:
    assert {*ColumnNames.model_fields} == {*NAMES}


def test_names_of_all_columns_of_a_dataset_are_reserved() -> None:
    schemas = (
        tables.IMAGE_ROW_SCHEMA,
        tables.DRAWN_SIZE_SCHEMA,
        tables.ORIGIN_SCHEMA,
        tables.OUTCOME_SCHEMA,
        tables.LOCATION_SCHEMA,
        tables.NEAR_DUPLICATE_SCHEMA,
    )
    names = {name for schema in schemas for name in schema.names}
    assert {*names, tables.IMAGE_FIELD.name} == RESERVED_COLUMNS


def test_what_decides_an_image_is_what_its_row_and_its_parameters_hold() -> None:
    assert _field_names(ImageParameters) == IDENTITY
    assert [name for name in IMAGE_ROW_SCHEMA.names if name in IDENTITY] == IDENTITY


def test_a_users_check_sees_all_that_decides_an_image() -> None:
    assert _field_names(ImageSpec) == ["image_id", "id", "image_index", *IDENTITY]


def test_a_batch_has_one_value_of_each_column_of_its_shape() -> None:
    assert {*_field_names(BatchShape)} == SHAPE
    assert {*_field_names(ImageGroup)} == SHAPE | {"images", "truncated", "pass_work"}


def test_defaults_have_the_bounds_of_rows() -> None:
    assert _bounds("steps") == STEPS
    assert _bounds("guidance") == GUIDANCE
    assert _bounds("guidance_rescale") == GUIDANCE_RESCALE
    assert _bounds("images_per_prompt") == IMAGES_PER_ROW
