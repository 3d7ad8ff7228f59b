from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest
import yaml
from hypothesis import given
from hypothesis import strategies as st

from pams_mil.cli.init import template
from pams_mil.engine.config.complete_config import complete
from pams_mil.engine.config.grid_config import GridConfig, cells, reference_label
from pams_mil.engine.config.run_config import RunConfig, build, configure, load_config, with_overrides
from pams_mil.engine.config.yaml_file import parse_yaml, read_yaml, write_yaml
from pams_mil.errors import ConfigError, ParameterError

GOOD = {"data": "m.csv", "classes": "digits"}


@pytest.mark.parametrize(
    ("content", "message"),
    [
        ({**GOOD, "trainin": {}}, r"there is no setting 'trainin'. Did you mean 'training'\?"),
        ({**GOOD, "epochs": 3}, r"no setting 'epochs'. Did you mean 'training.epochs'\?"),
        ({**GOOD, "name": "x"}, r"no setting 'name'. Did you mean 'method.name', 'model.name'\?"),
        ({**GOOD, "classes": {"Benign": ["N"]}}, r"classes: expected a preset or a class file, by name, found {"),
        ({**GOOD, "classes": []}, r"classes: expected a preset or a class file, by name, found \[\]"),
        ({**GOOD, "training": {"epoch": 3}}, r"no setting 'training.epoch'. Did you mean 'epochs'\?"),
        ({**GOOD, "data": {"manifest": "m", "feature": "x"}}, r"'data.feature'. Did you mean 'features'\?"),
        ({**GOOD, "method": "pam"}, r"no method called 'pam'. Did you mean 'pams'\?"),
        ({**GOOD, "model": "transmill"}, r"no model called 'transmill'. Did you mean 'transmil'\?"),
        ({**GOOD, "training": {"lr": -1}}, r"training.lr: input should be greater than 0, found -1"),
        ({**GOOD, "training": {"lr": float("inf")}}, r"training.lr: .*finite"),
        ({**GOOD, "training": {"epochs": 0}}, r"training.epochs"),
        ({**GOOD, "training": {"select": "accuracy"}}, r"training.select"),
        ({"classes": "digits"}, r"the setting 'data' is missing"),
        ({"data": "m.csv"}, r"the setting 'classes' is missing"),
    ],
)
def test_bad_settings_are_named(content, message):
    with pytest.raises(ConfigError, match=message):
        build(RunConfig, content)


@pytest.mark.parametrize(
    ("method", "error", "message"),
    [
        ({"name": "pams", "alhpa": 2}, ConfigError, r"The method 'pams' has no option 'alhpa'. Did you mean 'alpha'\?"),
        ({"name": "pams", "alpha": 0.5}, ParameterError, "alpha"),
        ({"name": "haf", "towers": "finest"}, ParameterError, "towers"),
    ],
)
def test_bad_method_options_are_named(method, error, message):
    with pytest.raises(error, match=message):
        complete(configure("m.csv", classes="digits", method=method))


def test_bad_model_option_is_named():
    with pytest.raises(ConfigError, match=r"The model 'abmil' has no option 'gate'. Did you mean 'gated'\?"):
        complete(configure("m.csv", classes="digits", model={"name": "abmil", "gate": True}))


def test_complete_writes_every_option_and_round_trips(tmp_path):
    config = complete(configure("m.csv", classes="digits", method={"name": "pams", "alpha": 2.0}))
    content = config.to_json()
    assert content["method"]["alpha"] == 2.0
    assert content["method"]["remix_options"]["clusters"] == 11
    assert content["model"]["gated"] is True
    again = build(RunConfig, yaml.safe_load(yaml.safe_dump(content)))
    assert complete(again).to_json() == content


@given(
    st.fixed_dictionaries(
        {},
        optional={
            "fold": st.integers(0, 3),
            "features": st.sampled_from(["bags", "0", "false"]),
            "splits": st.just("splits_0.csv"),
            "columns": st.dictionaries(st.sampled_from(["label", "patient_id"]), st.sampled_from(["0", "", "grade"])),
            "patients_are_slides": st.booleans(),
            "merge_cases": st.booleans(),
        },
    )
)
def test_stored_settings_are_the_settings(data):
    """Whatever is written to `config.yaml` is read back as it was; 0 is a fold like any other."""
    config = configure("m.csv", classes="digits", data=data, seed=0)
    assert build(RunConfig, parse_yaml(yaml.safe_dump(config.to_json()), where="here")) == config


@pytest.mark.parametrize("name", ["1e4", "12E-3", ".5e3", "+1e5", "2024-01-01", "no", "010", "1:30", "~", "a: b"])
def test_names_that_look_like_values_are_read_back_as_names(tmp_path, name):
    config = configure("m.csv", classes="digits", data={"encoder": name, "columns": {"label": name}}, lr=1e-5)
    write_yaml(tmp_path / "config.yaml", config.to_json())
    assert load_config(tmp_path / "config.yaml") == config


def test_recipe_of_dtfd_is_filled_in_and_can_be_overruled():
    training = configure("m.csv", classes="digits", model="dtfd").resolved().training
    assert (training.clip_norm, training.clip_each_part, training.schedule) == (5.0, True, "step")
    assert configure("m.csv", classes="digits", model="dtfd", clip_norm=0).resolved().training.clip_norm == 0
    assert configure("m.csv", classes="digits").resolved().training.schedule == "constant"


def test_template_is_a_valid_config_with_the_defaults(tmp_path):
    (tmp_path / "pams.yaml").write_text(template("pams.yaml"))
    config = load_config(tmp_path / "pams.yaml", ["training.epochs=7", "method.alpha=2"])
    assert config.training.epochs == 7
    assert config.method.options == {"alpha": 2}
    assert config.training.lr == configure("m", classes="bracs").training.lr


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("a: &x 1\nb: *x", "anchors"),
        ("a: 1\na: 2", "appears twice"),
        ("[" * 40 + "]" * 40, "nested deeper"),
        ("!!python/object/apply:os.system ['true']", "uses a YAML tag"),
        ("a: [1", "not valid YAML"),
    ],
)
def test_hostile_yaml_is_refused(text, message):
    with pytest.raises(ConfigError, match=message):
        parse_yaml(text, where="here")


def test_yaml_file_must_be_a_mapping(tmp_path):
    (tmp_path / "list.yaml").write_text("- 1")
    with pytest.raises(ConfigError, match="must be a YAML mapping"):
        read_yaml(tmp_path / "list.yaml")
    with pytest.raises(ConfigError, match="There is no file"):
        read_yaml(tmp_path / "none.yaml")


def test_overrides_need_a_key_and_a_value():
    with pytest.raises(ConfigError, match="not a setting"):
        with_overrides({}, ["epochs"])


def test_grid_cells_are_all_combinations_once():
    grid = build(
        GridConfig,
        {
            **GOOD,
            "methods": ["ce", {"name": "pams", "label": "no remix", "remix": None}],
            "models": ["abmil", "dtfd"],
            "seeds": [0, 1],
            "folds": [0, 1, 2],
        },
    )
    planned = cells(grid)
    assert len({cell.key for cell in planned}) == len(planned) == 24
    assert {cell.config.data.fold for cell in planned} == {0, 1, 2}
    assert all("label" not in cell.config.method.options for cell in planned)
    assert len({cell.config.training.model_dump_json() for cell in planned}) == 1  # the same budget for all
    assert reference_label(grid) == "ce"


def test_grid_labels_must_differ_and_reference_must_exist():
    with pytest.raises(ConfigError, match="more than once"):
        cells(build(GridConfig, {**GOOD, "methods": ["ce", {"name": "ce", "towers": "finest"}]}))
    with pytest.raises(ConfigError, match=r"no method labelled 'CE'.*Did you mean 'ce'"):
        reference_label(build(GridConfig, {**GOOD, "methods": ["ce"], "reference": "CE"}))
    with pytest.raises(ConfigError, match="no method called 'cee'"):
        build(GridConfig, {**GOOD, "methods": ["cee"]})


def test_a_model_of_a_grid_has_no_training_of_its_own():
    """What a method may bring must not be dropped in silence where a model brings it."""
    for part in ("training", "pairing"):
        grid = build(GridConfig, {**GOOD, "methods": ["ce"], "models": [{"name": "abmil", "label": "x", part: {}}]})
        with pytest.raises(ConfigError, match=f"The model 'abmil' has no option '{part}'"):
            complete(cells(grid)[0].config)


def test_settings_import_no_torch():
    modules = "pams_mil.engine.config.run_config, pams_mil.engine.config.grid_config"
    code = f"import sys, {modules}; sys.exit('torch' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", code], check=False).returncode == 0


def test_several_looks_at_a_bag_need_outputs_that_can_be_averaged():
    config = configure("m.csv", classes="bracs", method="corn", model={"name": "dtfd", "splits": 3})
    with pytest.raises(ConfigError, match=r"splits is 3.*'corn'.*splits=1"):
        complete(config)
    complete(configure("m.csv", classes="bracs", method="ce", model={"name": "dtfd", "splits": 3}))


@pytest.mark.parametrize(
    "name", ["/data/run #3", "~", "no", "1e-4", "null: x", "[a]", "a: b", "@x", "&y", "!tag", " x"]
)
def test_paths_and_names_are_taken_as_they_are_typed(name):
    changes = [f"data.manifest={name}", f"features={name}", f"classes={name}", f"splits={name}"]
    config = build(RunConfig, with_overrides({}, changes, kind=RunConfig))
    assert (config.data.manifest, config.data.features, config.data.splits) == (Path(name), Path(name), Path(name))
    assert config.classes == name
    grid = with_overrides({}, [f"data.features={name}", "methods=[ce, pams]", "seeds=[1]"], kind=GridConfig)
    assert grid == {"data": {"features": name}, "methods": ["ce", "pams"], "seeds": [1]}


def test_other_values_are_still_yaml():
    changes = [
        "lr=1e-3",
        "patience=null",
        "features=null",
        "model={name: dtfd, pseudo_bags: 2}",
        "method=ce",
        "devices=2",
    ]
    changed = with_overrides({}, changes, kind=RunConfig)
    assert changed["training"] == {"lr": 1e-3, "patience": None}
    assert changed["data"] == {"features": None}
    assert changed["model"] == {"name": "dtfd", "pseudo_bags": 2}
    assert changed["method"] == "ce"
    assert changed["compute"] == {"devices": 2}
    assert with_overrides({}, ["data=/x #1.csv"], kind=RunConfig) == {"data": "/x #1.csv"}


def test_a_method_of_a_grid_may_bring_its_own_training_and_pairing():
    arm = {"name": "ce", "label": "dropped", "training": {"drop_instances": 0.7}, "pairing": {"rule": "keep_label"}}
    grid = build(
        GridConfig, {**GOOD, "methods": ["ce", arm], "training": {"epochs": 3}, "pairing": {"probability": 0.2}}
    )
    plain, own = (cell.config for cell in cells(grid)[:2])
    assert (plain.training.epochs, plain.training.drop_instances, plain.pairing) == (3, None, {"probability": 0.2})
    assert (own.training.epochs, own.training.drop_instances) == (3, 0.7)
    assert own.pairing == {"probability": 0.2, "rule": "keep_label"}
    assert own.method.options == {}
    for broken, words in (
        (0.7, "methods.0.training: input should be a valid dictionary, found 0.7.$"),
        ({"drop_instance": 0.7}, "drop_instances"),
    ):
        with pytest.raises(ConfigError, match=words):
            cells(build(GridConfig, {**GOOD, "methods": [{**arm, "training": broken}]}))


def test_an_arm_of_a_grid_has_its_own_settings():
    """Of one method on one model, before what the method and the grid name; other arms keep theirs."""
    methods = ["ce", {"name": "pams", "training": {"epochs": 4, "lr": 0.5}}]
    content = {**GOOD, "methods": methods, "models": ["abmil", {"name": "dtfd", "label": "DTFD"}], "seeds": [0]}
    arms = {"DTFD": {"pams": {"epochs": 9}, "ce": {"epochs": 2}}, "transmil": {"ce": {"epochs": 1}}}
    planned = cells(build(GridConfig, {**content, "training": {"epochs": 3}, "arms": arms}))
    assert {(cell.model, cell.method): cell.config.training.epochs for cell in planned} == {
        ("abmil", "ce"): 3, ("abmil", "pams"): 4, ("DTFD", "ce"): 2, ("DTFD", "pams"): 9,
    }  # fmt: skip
    assert planned[-1].config.training.lr == 0.5
    for broken, words in (
        ({"DTFD": {"PAMS": {}}}, r"no method labelled 'PAMS'.*Did you mean 'pams'"),
        ({"dtfdd": {"pams": {}}}, r"no model labelled 'dtfdd'.*Did you mean 'DTFD'"),
        ({"abmil": {"ce": {"epoch": 2}}}, "epochs"),
    ):
        with pytest.raises(ConfigError, match=words):
            cells(build(GridConfig, {**content, "arms": broken}))
