import { Link } from "wouter-preact";
import { usePolled } from "@/api/polling";
import type { Run } from "@/api/runs";
import { Name } from "@/parts/name";
import { placeAddress } from "@/text/traceback";
import { findRaisingPlace } from "./code_files";
import { exitText } from "./run_text";
import styles from "./run_page.module.css";

const HINTS: Record<string, string> = {
  "out-of-memory": "Fork it with more memory: with the button Fork, or hop fork RUN --memory 16G",
  "time-limit":
    "Fork it from its newest checkpoint with a longer limit: with the button Fork, or hop fork RUN@newest --time 8h",
  "prepare-failed": "The machine could not prepare it: see the log and hop doctor",
};

const MISSING_PACKAGE =
  "Name the packages of the script in a file requirements.txt of the code. Then start it again, with this file under Python packages.";

/** How a run ended, if it did not succeed: the reason, the line that raised, and what to do. */
export function ExitNotice({ run }: { run: Run }) {
  const exit = run.exit;
  const sentences = [...run.unstored, ...(run.elsewhere ?? [])];
  if ((exit === null || exit.code === 0) && sentences.length === 0) {
    return null;
  }
  const hint = exit?.reason.includes("ModuleNotFoundError")
    ? MISSING_PACKAGE
    : HINTS[exit?.kind ?? ""]?.replace("RUN", run.name);
  return (
    <section class={styles["exit"]} aria-label="how it ended">
      {exit !== null && exit.code !== 0 && <h2>{exitText(exit)}</h2>}
      {exit !== null && exit.kind === "exit-code" && exit.code !== 0 && <RaisedAt run={run} />}
      {hint !== undefined && <p>{hint}</p>}
      {sentences.map((sentence) => (
        <p key={sentence}>{sentence}</p>
      ))}
    </section>
  );
}

/** A link to the line of the code that raised, if the output has a traceback through the code of the run. */
function RaisedAt({ run }: { run: Run }) {
  const place = usePolled(
    `raised ${run.id} ${run.attempts?.length}`,
    () => findRaisingPlace(run),
    () => null,
  ).data;
  return place === null ? null : (
    <p>
      Raised at{" "}
      <Link href={placeAddress(run.id, place)}>
        <Name text={place.path} />, line {place.line}
      </Link>
    </p>
  );
}
