"""States of trials: encoded so that equal states are equal bytes, stored in shared memory, transferred
between hosts."""
