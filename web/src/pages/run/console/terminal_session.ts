/** A terminal with a shell beside the script of a run. It lives until it is closed, also while another tab of the page
 *  is shown. */
import { signal } from "@preact/signals";
import { FitAddon } from "@xterm/addon-fit";
import { Terminal, type ITheme } from "@xterm/xterm";
import "@xterm/xterm/css/xterm.css";
import { ConsoleConnection, fieldsOf, Frame, type Message } from "@/api/console";
import type { Run } from "@/api/runs";
import { endText, type ConsoleState } from "./console_state";
import { openTerminal } from "./terminal_styles";

const SHELL = ["/bin/sh", "-c", "command -v bash >/dev/null 2>&1 && exec bash; exec sh"];
const SCROLLBACK = 5000; // lines
const MAX_BACKLOG = 8 * 2 ** 20; // bytes of output that are not drawn yet; more is left out
const LEFT_OUT = "\r\n[output was left out: it came faster than it can be shown]\r\n";
const ANSI = ["black", "red", "green", "yellow", "blue", "magenta", "cyan", "white"] as const;

export class TerminalSession {
  readonly state = signal<ConsoleState>({ phase: "opening" });
  /** The element of the terminal, to be placed where it is shown. */
  readonly element = document.createElement("div");
  private readonly terminal = new Terminal({
    fontFamily: style("--mono"),
    fontSize: 13,
    scrollback: SCROLLBACK,
    linkHandler: { activate: () => undefined }, // a program chooses where its links lead
  });
  private readonly fit = new FitAddon();
  private readonly resizes = new ResizeObserver(() => this.resize());
  private connection: ConsoleConnection | null = null;
  private backlog = 0;
  private isOpened = false;
  private isClosed = false;

  /** `attach`: to the terminal of a run that is a shell itself, in place of a shell of its own. */
  constructor(
    private readonly run: Run,
    private readonly rank: number,
    private readonly attach: boolean,
  ) {
    this.terminal.loadAddon(this.fit);
    this.terminal.attachCustomKeyEventHandler((event) => event.key !== "F6"); // the way out for a keyboard
    this.terminal.onData((text) => this.connection?.sendInput(text));
    this.terminal.onResize(({ rows, cols }) =>
      this.connection?.sendFields(Frame.RESIZE, { rows, columns: cols }),
    );
  }

  /** Shows the terminal in `place`, and opens its console at the first time. */
  show(place: HTMLElement): void {
    place.append(this.element);
    if (!this.isOpened) {
      this.isOpened = true;
      openTerminal(this.terminal, this.element);
      this.fit.fit();
      void this.connect();
    }
    this.terminal.options.theme = readTheme();
    this.resizes.observe(this.element);
    this.resize();
    this.terminal.focus();
  }

  hide(): void {
    this.resizes.disconnect();
    this.element.remove();
  }

  /** Ends the console, and with it the shell. */
  close(): void {
    this.isClosed = true;
    this.connection?.close();
    this.hide();
    this.terminal.dispose();
  }

  private resize(): void {
    if (this.element.isConnected && this.element.clientHeight > 0) {
      this.fit.fit();
    }
  }

  private async connect(): Promise<void> {
    const { rows, cols } = this.terminal;
    try {
      const connection = await ConsoleConnection.open(
        this.run.id,
        {
          kind: this.attach ? "terminal" : "exec",
          command: this.attach ? [] : SHELL,
          rank: this.rank,
          terminal: { rows, columns: cols, type: "xterm-256color" },
        },
        {
          onMessage: (message) => this.receive(message),
          onClose: () => this.end({ phase: "ended", text: "The connection to the run has ended." }),
        },
      );
      this.connection = connection;
      if (this.isClosed) {
        connection.close();
      } else if (this.state.value.phase === "opening") {
        this.state.value = { phase: "open" };
      }
    } catch (error) {
      this.end({ phase: "failed", error });
    }
  }

  private receive({ kind, payload }: Message): void {
    if (kind === Frame.OUTPUT || kind === Frame.ERROR_OUTPUT) {
      this.write(payload);
    } else if (kind === Frame.EXIT) {
      this.end({ phase: "ended", text: endText("The shell", fieldsOf(payload)) });
    }
  }

  private write(output: Uint8Array): void {
    if (this.backlog > MAX_BACKLOG) {
      return;
    }
    this.backlog += output.length;
    const isFull = this.backlog > MAX_BACKLOG;
    this.terminal.write(output, () => {
      this.backlog -= output.length;
    });
    if (isFull) {
      this.terminal.write(LEFT_OUT);
    }
  }

  private end(state: ConsoleState): void {
    if (this.state.value.phase === "opening" || this.state.value.phase === "open") {
      this.state.value = state;
      this.terminal.options.disableStdin = true;
    }
  }
}

function style(name: string): string {
  return getComputedStyle(document.documentElement).getPropertyValue(name).trim();
}

function readTheme(): ITheme {
  const theme: ITheme = {
    background: style("--surface"),
    foreground: style("--text"),
    cursor: style("--text"),
    cursorAccent: style("--surface"),
    selectionBackground: style("--line-strong"),
  };
  ANSI.forEach((name, index) => {
    theme[name] = style(`--ansi-${index}`);
    theme[`bright${name.charAt(0).toUpperCase()}${name.slice(1)}` as "brightRed"] = style(
      `--ansi-${index + 8}`,
    );
  });
  return theme;
}
