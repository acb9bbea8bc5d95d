"""Notebooks that a kernel really runs: what their cells show, what is saved, and how it looks as HTML."""

import re

import pytest

nbclient = pytest.importorskip("nbclient", reason="nbclient is not installed: make install")
nbconvert = pytest.importorskip("nbconvert", reason="nbconvert is not installed: make install")
pytest.importorskip("ipykernel", reason="ipykernel is not installed: make install")

import nbformat  # noqa: E402
from jupyter_client.manager import start_new_kernel  # noqa: E402

pytestmark = [
    pytest.mark.more,
    # Of zmq and jupyter_client, whose event loops belong to no test.
    pytest.mark.filterwarnings("ignore::ResourceWarning", "ignore::DeprecationWarning"),
]

SECONDS = 120
SETUP = """
import tempfile
from pathlib import Path
import regard
from regard import progress_bar
progress_bar.DELAY_SECONDS = 0.0  # a bar that may appear appears at once
folder = Path(tempfile.mkdtemp())
model = regard.load()
with regard.watch(model.model, layers=[0]) as recording:
    model.embed("A river bank.")
"""
CELLS = {
    "setup": SETUP,
    "first": "recording",
    "second": "recording",
    "twice": "display(recording)\ndisplay(recording)",
    "see": "regard.see('A river bank.', model=model, layer=0)",
    "explain": "regard.explain('A river bank.', 'river', model)",
    "mask": "regard.mask.causal().show(3, 3)",
}
WORK = {
    "setup": SETUP,
    "load": "model = regard.load()",
    "effect": "effects = regard.effect(model, 'A river bank.', regard.metrics.cosine(), over='heads')",
    "embed": "(folder / 'texts.txt').write_text('a text\\n' * 99)\n"
    "job = regard.embed(folder / 'texts.txt', folder / 'vectors.npy')",
    "train": "(folder / 'pairs.tsv').write_text(''.join(f'number {i}\\tZahl {i}\\n' for i in range(500)))\n"
    "sizes = dict(d_model=16, num_heads=2, num_layers=1, d_ff=32, batch_size=8)\n"
    "result = regard.train('translate', [folder / 'pairs.tsv'], out=folder / 'run', max_steps=2, eval_steps=2, "
    "accelerator='cpu', **sizes)",
}


def run(cells):
    """A notebook of these cells after a run."""
    notebook = nbformat.v4.new_notebook(cells=[nbformat.v4.new_code_cell(source) for source in cells.values()])
    nbclient.NotebookClient(notebook, timeout=SECONDS, kernel_name="python3").execute()
    return notebook


@pytest.fixture(scope="module")
def notebook():
    return run(CELLS)


@pytest.fixture(scope="module")
def shown(notebook):
    """For each cell its outputs as HTML."""
    outputs = ([output.data["text/html"] for output in cell.outputs] for cell in notebook.cells)
    return dict(zip(CELLS, outputs, strict=True))


@pytest.fixture(scope="module")
def saved(notebook, tmp_path_factory):
    """The notebook as HTML, without what a template takes from the network."""
    text, _ = nbconvert.HTMLExporter(template_name="basic").from_notebook_node(notebook)
    path = tmp_path_factory.mktemp("notebook") / "notebook.html"
    path.write_text(f"<!doctype html><meta charset=utf-8><title>notebook</title>{text}", "utf-8")
    return path


def test_only_the_first_cell_that_shows_a_recording_has_its_page(shown):
    (first,), others = shown["first"], [*shown["second"], *shown["twice"]]
    assert first.count("srcdoc=") == 1
    assert [each.count("srcdoc=") for each in others] == [0, 0, 0]
    assert all(len(each) < len(first) / 10 for each in others)


def test_every_output_has_a_picture(shown):
    outputs = [*shown["first"], *shown["second"], *shown["twice"], *shown["see"]]
    assert [each.count('<img class="regard-static"') for each in outputs] == [1] * 5


def test_texts_show_themselves_as_they_print(shown):
    assert "4. The proof" in shown["explain"][0]
    assert "\n2  ██████" in shown["mask"][0]


def test_a_saved_notebook_shows_every_page_as_tall_as_it_is(open_page, saved):
    page = open_page(saved, ready=".regard-frame", height=4000)
    page.wait_for_function("document.querySelectorAll('.regard-frame[data-live]').length == 5")
    frames = list(page.frames[1:])
    assert len(frames) == 5
    for frame in frames:
        inside = frame.evaluate("Math.ceil(document.getElementById('page').getBoundingClientRect().bottom + scrollY)")
        assert frame.frame_element().bounding_box()["height"] == inside
    titles = [frame.locator("h1").text_content() for frame in frames]
    assert titles == [*["Encoder"] * 4, "A river bank."]


def test_a_saved_notebook_shows_pictures_where_no_script_runs(chromium, saved):
    with chromium.without_scripts(saved) as page:
        pictures = page.locator(".regard-static").all()
        assert [picture.is_visible() for picture in pictures] == [True] * 5
        assert page.locator("iframe:visible").count() == 0
        assert "interactive page" in page.locator(".regard-note").first.text_content()


def test_work_that_takes_time_leaves_nothing_in_the_output():
    notebook = run(WORK)
    said = {name: cell.outputs for name, cell in zip(WORK, notebook.cells, strict=True)}
    assert said == {name: [] for name in WORK}


def test_a_cell_that_is_run_again_has_its_page_again():
    """As a notebook's own window runs cells, with the number of each."""
    manager, client = start_new_kernel(kernel_name="python3")
    try:

        def has_page(cell, source="recording"):
            outputs = []
            content = {"code": source, "silent": False, "store_history": True, "user_expressions": {}}
            content |= {"allow_stdin": True, "stop_on_error": True}
            message = client.session.msg("execute_request", content, metadata={"cellId": cell})
            client.shell_channel.send(message)
            while True:
                answer = client.get_iopub_msg(timeout=SECONDS)
                if answer["parent_header"].get("msg_id") != message["header"]["msg_id"]:
                    continue
                if answer["msg_type"] == "error":
                    raise AssertionError("\n".join(answer["content"]["traceback"]))
                if answer["msg_type"] == "execute_result":
                    outputs.append(answer["content"]["data"]["text/html"])
                if answer["msg_type"] == "status" and answer["content"]["execution_state"] == "idle":
                    return [re.search("<iframe srcdoc=", each) is not None for each in outputs]

        assert has_page("0", SETUP) == []
        runs = ["a", "b", "a", "b", "b"]
        assert [has_page(cell) for cell in runs] == [[True], [False], [True], [False], [True]]
    finally:
        client.stop_channels()
        manager.shutdown_kernel(now=True)
