"""Options in another module of the folder."""


def add_model_options(parser):
    """Adds the model's options."""
    parser.add_argument("--layers", type=int, nargs="+", default=[1])
