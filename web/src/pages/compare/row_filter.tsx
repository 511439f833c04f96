import type { CompareView } from "./compare_view";

/** Which rows of a comparison are shown: by name, and only those that differ. */
export function RowFilter({
  view,
  change,
  isInvalid,
  name = "Rows",
}: {
  view: CompareView;
  change: (part: Partial<CompareView>) => void;
  isInvalid: boolean;
  name?: string;
}) {
  return (
    <>
      <label>
        {name}
        <input
          type="search"
          placeholder="regular expression"
          value={view.rows}
          aria-invalid={isInvalid}
          onInput={(event) => change({ rows: event.currentTarget.value })}
        />
      </label>
      <label>
        <input
          type="checkbox"
          checked={view.isDifferencesOnly}
          onChange={(event) => change({ isDifferencesOnly: event.currentTarget.checked })}
        />
        Differences only
      </label>
      {isInvalid && <p role="alert">{view.rows} is not a regular expression</p>}
    </>
  );
}
