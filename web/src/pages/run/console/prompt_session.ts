/** A Python prompt in the process of a run's script, and what was said in it. */
import { signal } from "@preact/signals";
import { ConsoleConnection, fieldsOf, Frame, type Message } from "@/api/console";
import { giveCommand, type Run } from "@/api/runs";
import { endText, type ConsoleState } from "./console_state";
import { modeOf } from "./python_input";

export interface Entry {
  kind: "input" | "output" | "error" | "note";
  text: string;
}

const MAX_TEXT = 1_000_000; // characters of the transcript; the oldest are left out
const WAIT_NOTICE_MS = 1000; // without a safe point for so long, the page says what is waited for
const decoder = new TextDecoder();

export class PromptSession {
  readonly state = signal<ConsoleState>({ phase: "opening" });
  readonly entries = signal<readonly Entry[]>([]);
  /** Whether statements wait or are evaluated. */
  readonly isBusy = signal(false);
  readonly isWaiting = signal(false);
  readonly history: string[] = [];
  private connection: ConsoleConnection | null = null;
  private isClosed = false;
  private notice: ReturnType<typeof setTimeout> | undefined;
  private onNames: ((names: string[]) => void) | null = null;

  constructor(
    private readonly run: Run,
    private readonly rank: number,
  ) {
    this.expectSafePoint();
    void this.connect();
  }

  evaluate(source: string): void {
    this.history.push(source);
    this.add("input", source);
    this.isBusy.value = true;
    this.expectSafePoint();
    this.connection?.sendFields(Frame.STATEMENT, { source: `${source}\n`, mode: modeOf(source) });
  }

  interrupt(): void {
    this.connection?.sendFields(Frame.SIGNAL, { name: "INT" });
  }

  /** Asks for the names that begin with `text`; the answer comes at the next safe point. */
  complete(text: string, onNames: (names: string[]) => void): void {
    this.onNames = onNames;
    this.connection?.sendFields(Frame.COMPLETE, { text });
  }

  close(): void {
    this.isClosed = true;
    clearTimeout(this.notice);
    this.connection?.close();
  }

  private async connect(): Promise<void> {
    try {
      this.connection = await ConsoleConnection.open(
        this.run.id,
        { kind: "repl", command: [], rank: this.rank },
        {
          onMessage: (message) => this.receive(message),
          onClose: () => this.end({ phase: "ended", text: "The connection to the run has ended." }),
        },
      );
      if (this.isClosed) {
        this.connection.close();
      }
    } catch (error) {
      this.end({ phase: "failed", error });
    }
  }

  private receive({ kind, payload }: Message): void {
    switch (kind) {
      case Frame.READY: {
        const { python, step } = fieldsOf(payload);
        this.reachSafePoint();
        if (this.state.value.phase === "opening") {
          this.state.value = { phase: "open" };
          this.add(
            "note",
            `Python ${String(python)}, at step ${String(step)}. Training continues between statements.`,
          );
        }
        break;
      }
      case Frame.OUTPUT:
        this.add("output", decoder.decode(payload));
        break;
      case Frame.ERROR_OUTPUT:
        this.add("error", decoder.decode(payload));
        break;
      case Frame.RESULT:
        void this.finish(fieldsOf(payload)["changes"]);
        break;
      case Frame.COMPLETIONS: {
        const { names } = fieldsOf(payload);
        this.onNames?.(Array.isArray(names) ? names.map(String) : []);
        this.onNames = null;
        break;
      }
      case Frame.EXIT:
        this.end({ phase: "ended", text: endText("The prompt", fieldsOf(payload)) });
        break;
    }
  }

  /** Sets the parameters that a statement assigned, as `hop set` does: in all processes at one step. */
  private async finish(changes: unknown): Promise<void> {
    this.reachSafePoint();
    const params = changes as Record<string, number>;
    if (changes !== null && typeof changes === "object" && Object.keys(params).length > 0) {
      try {
        const { state, answer, step } = await giveCommand(this.run.id, {
          kind: "set",
          params,
          release: false,
        });
        this.add(
          "note",
          state === "pending"
            ? "The change is applied at the next safe point of all processes."
            : `${answer}, ${state} at step ${step}`,
        );
      } catch (error) {
        this.add("error", error instanceof Error ? error.message : String(error));
      }
    }
    this.isBusy.value = false;
  }

  private expectSafePoint(): void {
    clearTimeout(this.notice);
    this.notice = setTimeout(() => {
      this.isWaiting.value = true;
    }, WAIT_NOTICE_MS);
  }

  private reachSafePoint(): void {
    clearTimeout(this.notice);
    this.isWaiting.value = false;
  }

  private add(kind: Entry["kind"], text: string): void {
    const entries = [...this.entries.value];
    const last = entries.at(-1);
    if (last?.kind === kind && (kind === "output" || kind === "error")) {
      entries[entries.length - 1] = { kind, text: (last.text + text).slice(-MAX_TEXT) };
    } else {
      entries.push({ kind, text: text.slice(-MAX_TEXT) });
    }
    let size = entries.reduce((sum, entry) => sum + entry.text.length, 0);
    while (size > MAX_TEXT && entries.length > 1) {
      size -= entries.shift()?.text.length ?? 0;
    }
    this.entries.value = entries;
  }

  private end(state: ConsoleState): void {
    this.reachSafePoint();
    this.isBusy.value = false;
    if (this.state.value.phase === "opening" || this.state.value.phase === "open") {
      this.state.value = state;
    }
  }
}
