/** Ctrl-K: goes to a page or a run, or does what a key would do. */
import { Command, defaultFilter } from "cmdk";
import { useEffect, useState } from "preact/hooks";
import { useLocation } from "wouter-preact";
import { Dialog as Base } from "@base-ui/react/dialog";
import { api, data, isTemporary, type Schemas } from "@/api/client";
import { PhaseBadge } from "@/parts/phase";
import styles from "./command_palette.module.css";
import { isPaletteOpen } from "./keyboard";
import { shortcuts, type Shortcut } from "./keys";

const SETTLE_MS = 120;
const RETRY_MS = 1000;
const MAX_RUNS = 8;

type RunOut = Schemas["RunOut"];

interface Found {
  /** The text that `runs` match; null before the first answer. */
  text: string | null;
  runs: readonly RunOut[];
}

const runTitle = (run: RunOut) => (run.spec.label ? `${run.spec.label} · ${run.name}` : run.name);
const actionKey = ({ section, text }: Shortcut) => `${section} ${text}`;
const hasText = (title: string, text: string) => title.toLowerCase().includes(text.toLowerCase());

/** Returns the actions with a text in their name, the best match first. */
function matchingActions(all: readonly Shortcut[], text: string): Shortcut[] {
  return all
    .filter((each) => !each.isRepeat && each.keys !== "Ctrl+k")
    .map((each) => ({ each, score: text === "" ? 1 : defaultFilter(actionKey(each), text) }))
    .filter(({ score }) => score > 0)
    .sort((a, b) => b.score - a.score)
    .map(({ each }) => each);
}

/** Returns the newest runs with a text in their name, label or tags: those of the newest answer. */
function useFoundRuns(text: string, isOpen: boolean): Found {
  const [found, setFound] = useState<Found>({ text: null, runs: [] });
  useEffect(() => {
    if (!isOpen) {
      return;
    }
    const abort = new AbortController();
    let timer = 0;
    const read = () => {
      const query = { limit: MAX_RUNS, trials: 0, ...(text === "" ? {} : { text }) };
      data(api.GET("/api/v1/runs", { params: { query }, signal: abort.signal }))
        .then(({ runs }) => setFound({ text, runs }))
        .catch((error: unknown) => {
          // pages and actions are there without the server
          if (!abort.signal.aborted && isTemporary(error)) {
            timer = window.setTimeout(read, RETRY_MS);
          }
        });
    };
    timer = window.setTimeout(read, SETTLE_MS);
    return () => {
      window.clearTimeout(timer);
      abort.abort();
    };
  }, [text, isOpen]);
  return found;
}

export function CommandPalette() {
  const [, navigate] = useLocation();
  const [text, setText] = useState("");
  const [selected, setSelected] = useState("");
  const typed = text.trim();
  const found = useFoundRuns(typed, isPaletteOpen.value);
  const isAnswered = found.text === typed;
  // until the answer for the typed text is there, the runs of the last one that have it in their name
  const runs = isAnswered ? found.runs : found.runs.filter((run) => hasText(runTitle(run), typed));
  const actions = matchingActions(shortcuts.value, typed);
  useEffect(() => {
    // cmdk selects the first item as one types, when the runs of the server are not there yet
    setSelected(found.runs[0]?.id ?? (actions[0] ? actionKey(actions[0]) : ""));
  }, [found]);
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
          <Command label="commands" loop shouldFilter={false} value={selected} onValueChange={setSelected}>
            <Command.Input
              className={styles["input"]}
              placeholder="Type the name of a page, a run or an action"
              value={text}
              onValueChange={setText}
            />
            <Command.List className={styles["list"]}>
              {runs.length + actions.length === 0 && (
                <p class={styles["empty"]} role="status">
                  {isAnswered ? "Nothing is called that." : "Searching…"}
                </p>
              )}
              {runs.length > 0 && (
                <Command.Group heading="Runs" className={styles["group"]}>
                  {runs.map((run) => (
                    <Command.Item
                      key={run.id}
                      value={run.id}
                      className={styles["item"]}
                      onSelect={choose(() => navigate(`/runs/${run.id}`))}
                    >
                      <span class={styles["name"]}>{runTitle(run)}</span>
                      <PhaseBadge phase={run.phase} />
                    </Command.Item>
                  ))}
                </Command.Group>
              )}
              {actions.length > 0 && (
                <Command.Group heading="Actions" className={styles["group"]}>
                  {actions.map((shortcut) => (
                    <Command.Item
                      key={shortcut.keys}
                      value={actionKey(shortcut)}
                      className={styles["item"]}
                      onSelect={choose(() => shortcut.run())}
                    >
                      <span class={styles["name"]}>{shortcut.text}</span>
                      <kbd>{shortcut.keys}</kbd>
                    </Command.Item>
                  ))}
                </Command.Group>
              )}
            </Command.List>
          </Command>
        </Base.Popup>
      </Base.Portal>
    </Base.Root>
  );
}
