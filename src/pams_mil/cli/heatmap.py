"""`pams heatmap`: where on the slide a trained run looks, and what speaks for which class."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from typer import Argument, Exit, Option

from pams_mil.cli.console import output, print_json, print_note, print_result
from pams_mil.cli.options import out_folder
from pams_mil.errors import PamsError


def heatmap(
    run: Path = Argument(..., help="Run folder or checkpoint."),
    slides: list[Path] = Argument(..., metavar="SLIDE...", help="Slide files, or folders to search for slides."),
    out: Path = Option(..., callback=out_folder, help="Folder; every slide gets a folder inside."),
    features: Path | None = Option(None, help="Folder with the slides' bags, if extracted already."),
    encoder: str | None = Option(
        None, help="The run's encoder, if the run does not name it or its name does not lead to it."
    ),
    mpp: float | None = Option(None, help="Microns per pixel of the run's tiles, if it does not say."),
    tile_px: int | None = Option(None, help="Side of the run's tiles, if it does not say."),
    weights: Path | None = Option(None, help="Weight file of the encoder, for use offline."),
    mpp_of_slide: float | None = Option(None, help="If the slide does not state it."),
    picture_px: int = Option(1600, min=200, max=8192, help="Longer side of the pictures."),
    opacity: float = Option(0.5, min=0.0, max=1.0, help="How strongly colors cover the slide."),
    trust_code: bool = Option(False, "--trust-code", help="Allow a run that names your own method or model."),
    device: str = Option("auto", help="auto, cpu, cuda, ..."),
    json: bool = Option(False, "--json", help="Print probabilities and files as JSON."),
) -> None:
    """Draw attention and per-class evidence over slides, for every level the run was trained on.

    Writes for every slide a folder with slide.html (all of it on one page), attention_LEVEL.png,
    evidence_LEVEL_CLASS.png (finding_LEVEL_CLASS.png where slides have several findings), and heatmap.geojson, which
    QuPath opens.

    Example: pams heatmap runs/pams-abmil-seed0 slides/case-17.svs --features features --out heat
    """
    from pams_mil.cli.heatmap_files import draw_slide
    from pams_mil.data.bags.feature_origin import complete_origin
    from pams_mil.engine.prediction.predict import load_runs
    from pams_mil.wsi.encoders.encoder import EncoderOptions
    from pams_mil.wsi.slide_sources import find_slides

    loaded = load_runs([run], trusted=trust_code, device=device)
    stated = {"mpp": mpp, "tile_px": tile_px}
    origin = complete_origin(loaded[0].spec.encoder, stated, where="The command", whose=f"the run {run}")
    drawn: dict[str, Any] = {}
    failed = {}
    sources = find_slides(slides, mpp_of_slide=mpp_of_slide)
    for source in sources:
        try:
            predictions, page = draw_slide(
                loaded, source, out, origin, features=features, encoder=encoder, model=str(run), opacity=opacity,
                longest_px=picture_px, options=EncoderOptions(device=device, weights=weights),
            )  # fmt: skip
        except PamsError as error:
            if len(sources) == 1:
                raise
            failed[source.slide_id] = str(error)
            print_note(f"{source.slide_id}: {error}")
            continue
        levels = predictions.by_level(0)
        drawn[source.slide_id] = {"page": str(page), "probabilities": levels}
        if not json:
            output.print(f"{predictions.names[0]}:", style="bold")
            for level, shares in levels.items():
                print_result(f"{level}: {', '.join(f'{label} {p:.3f}' for label, p in shares.items())}")
            if predictions.sample.finding_probabilities is not None:
                print_result(f"findings: {predictions.called_findings()[0]}")
            print_result(f"Page: {page}")
    if json:
        print_json({"slides": drawn, "failed": failed})
    if failed:
        raise Exit(1)
