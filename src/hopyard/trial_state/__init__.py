"""States of trials: encoded so that equal ones are equal bytes, kept on shelves in shared memory, fetched
between hosts."""
