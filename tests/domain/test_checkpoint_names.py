from __future__ import annotations

import pytest

from hopyard.domain.checkpoint_names import saved_file_patterns


@pytest.mark.parametrize(
    ("source", "patterns"),
    [
        ("torch.save(model.state_dict(), 'mnist_cnn.pt')", ("mnist_cnn.pt",)),
        ("torch.save(x, os.path.join(out_dir, 'model.pt'))", ("model.pt",)),
        ("torch.save(x, f'out/model-{epoch}.pth')", ("model-*.pth",)),
        ("torch.save(x, out / 'best' / ('m_%d' % 3 + '.bin'))", ("*.bin",)),
        ("PATH = 'weights.pkl'\njoblib.dump(x, PATH)", ("weights.pkl",)),
        ("torch.save(x, '{}/epoch_{:03d}.pt'.format(out, 3))", ("epoch_*.pt",)),
        ("with open(a, 'wb') as f: torch.save(x, f)", ()),
        ("with open('out/best.bin', 'wb') as f: torch.save(x, f)", ("best.bin",)),
        ("torch.save(obj=x, f='model.pth')", ("model.pth",)),
        ("out = f'step_{n}'\nout = os.path.join(a.out, out)\naccelerator.save_state(out)", ("step_*",)),
        ("out = 'step_1'\nout = f'epoch_{n}'\naccelerator.save_state(out)", ("step_1", "epoch_*")),
        ("keras.callbacks.ModelCheckpoint(filepath='best.keras')", ("best.keras",)),
        ("BackupAndRestore(backup_dir='backup/')", ("backup",)),
        ("pickle.load(f)\nwith open('q.pkl', 'wb') as f:\n    pickle.dump(table, f)", ("q.pkl",)),
        ("pickle.dump(results, open('results.pkl', 'wb'))", ()),
        (
            "with open('log.csv', 'w') as f:\n    f.write(x)\nwith open('data.pkl', 'rb') as f:\n"
            "    data = pickle.load(f)\nwith open('state.pkl', 'rb') as f:\n    state = pickle.load(f)\n"
            "with open('state.pkl', 'wb') as f:\n    pickle.dump(state, f)\n"
            "f = open('curve.pkl', 'wb')\npickle.dump(curve, f)",
            ("state.pkl",),
        ),
        (
            "f = open('notes.txt', 'w')\nf = open('q-1.pkl', 'wb')\npickle.dump(q, f)\n"
            "f = open('later.txt')\nq = pickle.load(open(f'q-{n}.pkl', 'rb'))",
            ("q-1.pkl",),
        ),
        ("torch.save(x" + ".half()" * 400 + ", 'deep.pt')", ()),  # too deep
        ("self.save_checkpoint('latest.tar')", ("latest.tar",)),
        ("torch.save(x, name)", ()),
        ("model.save('x.h5')", ()),
        ("torch.save(x, 'a.pt'", ()),
    ],
)
def test_names_of_saved_checkpoints(source: str, patterns: tuple[str, ...]) -> None:
    assert saved_file_patterns(source) == patterns
