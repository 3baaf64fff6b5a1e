"""A handmade static embedding model of a few words."""

import json

import pytest

# Words by meaning, one dimension each.
MEANINGS = (
    ("vehicle", "car", "volvo", "drives"),
    ("allergic", "peanuts", "nuts", "eat", "guests"),
    ("deploy", "ship", "release", "production"),
    ("teeth", "dentist"),
)


def write_model(directory, meanings=MEANINGS, **tensors):
    """Write a model to a new directory in the format of model2vec."""
    numpy, save = pytest.importorskip("numpy"), pytest.importorskip("safetensors.numpy").save_file
    words = ["[UNK]", *(word for group in meanings for word in group)]
    vectors = numpy.zeros((len(words), len(meanings)), numpy.float32)
    for at, group in enumerate(meanings):
        for word in group:
            vectors[words.index(word), at] = 1
    directory.mkdir(mode=0o755)
    vocabulary = {word: at for at, word in enumerate(words)}
    (directory / "tokenizer.json").write_text(json.dumps({"model": {"vocab": vocabulary}}))
    save({"embeddings": vectors} | tensors, directory / "model.safetensors")
    for each in directory.iterdir():
        each.chmod(0o644)
    return directory
