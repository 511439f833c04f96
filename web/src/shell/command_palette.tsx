/** Ctrl-K: goes to a page or a run, or does what a key would do. */
import { Command } from "cmdk";
import { useEffect, useState } from "preact/hooks";
import { useLocation } from "wouter-preact";
import { Dialog as Base } from "@base-ui/react/dialog";
import { api, data, type Schemas } from "@/api/client";
import { PhaseBadge } from "@/parts/phase";
import styles from "./command_palette.module.css";
import { isPaletteOpen } from "./keyboard";
import { shortcuts } from "./keys";

const SETTLE_MS = 120;
const MAX_RUNS = 8;

/** Returns the newest runs with a text in their name, label or tags. */
function useFoundRuns(text: string, isOpen: boolean): readonly Schemas["RunOut"][] {
  const [runs, setRuns] = useState<readonly Schemas["RunOut"][]>([]);
  useEffect(() => {
    if (!isOpen) {
      return;
    }
    const abort = new AbortController();
    const timer = window.setTimeout(() => {
      const query = { limit: MAX_RUNS, trials: 0, ...(text.trim() === "" ? {} : { text: text.trim() }) };
      data(api.GET("/api/v1/runs", { params: { query }, signal: abort.signal }))
        .then((page) => setRuns(page.runs))
        .catch(() => undefined); // pages and actions are there without the server
    }, SETTLE_MS);
    return () => {
      window.clearTimeout(timer);
      abort.abort();
    };
  }, [text, isOpen]);
  return runs;
}

export function CommandPalette() {
  const [, navigate] = useLocation();
  const [text, setText] = useState("");
  const [selected, setSelected] = useState("");
  const runs = useFoundRuns(text, isPaletteOpen.value);
  useEffect(() => {
    // cmdk selects the first item as one types, when the runs of the server are not there yet
    setSelected(runs[0]?.id ?? "");
  }, [runs]);
  const close = () => {
    isPaletteOpen.value = false;
    setText("");
  };
  const choose = (action: () => void) => () => {
    close();
    action();
  };
  return (
    <Base.Root
      open={isPaletteOpen.value}
      onOpenChange={(open) => (open ? (isPaletteOpen.value = true) : close())}
    >
      <Base.Portal>
        <Base.Backdrop className={styles["backdrop"]} />
        <Base.Popup className={styles["popup"]} aria-label="commands">
          <Command label="commands" loop value={selected} onValueChange={setSelected}>
            <Command.Input
              className={styles["input"]}
              placeholder="Type the name of a page, a run or an action"
              value={text}
              onValueChange={setText}
            />
            <Command.List className={styles["list"]}>
              <Command.Empty className={styles["empty"]}>Nothing is called that.</Command.Empty>
              {runs.length > 0 && (
                <Command.Group heading="Runs" className={styles["group"]}>
                  {runs.map((run) => (
                    <Command.Item
                      key={run.id}
                      value={run.id}
                      keywords={[run.name, run.spec.label ?? "", text]}
                      className={styles["item"]}
                      onSelect={choose(() => navigate(`/runs/${run.id}`))}
                    >
                      <span class={styles["name"]}>
                        {run.spec.label ? `${run.spec.label} · ${run.name}` : run.name}
                      </span>
                      <PhaseBadge phase={run.phase} />
                    </Command.Item>
                  ))}
                </Command.Group>
              )}
              <Command.Group heading="Actions" className={styles["group"]}>
                {shortcuts.value
                  .filter((shortcut) => !shortcut.isRepeat && shortcut.keys !== "Ctrl+k")
                  .map((shortcut) => (
                    <Command.Item
                      key={shortcut.keys}
                      value={`${shortcut.section} ${shortcut.text}`}
                      className={styles["item"]}
                      onSelect={choose(() => shortcut.run())}
                    >
                      <span class={styles["name"]}>{shortcut.text}</span>
                      <kbd>{shortcut.keys}</kbd>
                    </Command.Item>
                  ))}
              </Command.Group>
            </Command.List>
          </Command>
        </Base.Popup>
      </Base.Portal>
    </Base.Root>
  );
}
