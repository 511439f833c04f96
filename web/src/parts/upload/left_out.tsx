import { Name } from "@/parts/name";
import { formatCount } from "@/text/format";
import type { Selected } from "./select_files";
import styles from "./upload.module.css";

export const MAX_SHOWN = 200;

/** The paths that an upload leaves out, with their reasons; nothing without any. */
export function LeftOut({ paths }: { paths: Selected["leftOut"] }) {
  return paths.length === 0 ? null : (
    <details>
      <summary class={styles["help"]}>{formatCount(paths.length, "path is", "paths are")} left out</summary>
      <ul class={styles["leftOut"]}>
        {paths.slice(0, MAX_SHOWN).map(({ path, reason }) => (
          <li key={path}>
            <Name text={path} /> ({reason})
          </li>
        ))}
      </ul>
    </details>
  );
}
