/** Compares texts as people order them: `b2` before `b10`. One collator: `localeCompare` makes one at each call. */
export const naturalOrder = new Intl.Collator(undefined, { numeric: true }).compare;
