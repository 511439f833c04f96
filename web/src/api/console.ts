/** The messages of a console of a live run, and the WebSocket that carries them (see the API reference). */
import { api, data, type Schemas } from "./client";

export const Frame = {
  INPUT: 2,
  RESIZE: 3,
  SIGNAL: 4,
  STATEMENT: 5,
  COMPLETE: 6,
  READY: 16,
  OUTPUT: 17,
  ERROR_OUTPUT: 18,
  TAKEN: 19,
  EXIT: 20,
  RESULT: 21,
  COMPLETIONS: 22,
} as const;

export interface Message {
  kind: number;
  payload: Uint8Array;
}

const HEADER_BYTES = 5; // the kind, and the length of the payload with the most significant byte first
const DATA_BYTES = 64 * 1024; // of one message of input
const INPUT_WINDOW = 256 * 1024; // bytes of input that may be on their way
const encoder = new TextEncoder();
const decoder = new TextDecoder();

/** Returns the bytes of a message. */
export function encodeMessage(kind: number, payload: Uint8Array): Uint8Array<ArrayBuffer> {
  const bytes = new Uint8Array(HEADER_BYTES + payload.length);
  bytes[0] = kind;
  new DataView(bytes.buffer).setUint32(1, payload.length);
  bytes.set(payload, HEADER_BYTES);
  return bytes;
}

/** Splits the bytes of a connection into messages. */
export class MessageReader {
  private parts: Uint8Array[] = [];
  private size = 0;
  private needed = HEADER_BYTES; // so many bytes until the next message is complete, as far as is known

  /** Returns the messages that are complete now. */
  feed(bytes: Uint8Array): Message[] {
    this.parts.push(bytes);
    this.size += bytes.length;
    if (this.size < this.needed) {
      return [];
    }
    const joined = new Uint8Array(this.size);
    this.parts.reduce((at, part) => (joined.set(part, at), at + part.length), 0);
    const view = new DataView(joined.buffer);
    const messages: Message[] = [];
    let at = 0;
    for (;;) {
      const left = joined.length - at;
      this.needed = HEADER_BYTES + (left < HEADER_BYTES ? 0 : view.getUint32(at + 1));
      if (left < this.needed) {
        break;
      }
      messages.push({
        kind: view.getUint8(at),
        payload: joined.slice(at + HEADER_BYTES, at + this.needed),
      });
      at += this.needed;
    }
    this.parts = [joined.subarray(at)];
    this.size = joined.length - at;
    return messages;
  }
}

/** Returns the fields of a message with a payload in JSON. */
export function fieldsOf(payload: Uint8Array): Record<string, unknown> {
  return JSON.parse(decoder.decode(payload)) as Record<string, unknown>;
}

export interface ConsoleListener {
  onMessage: (message: Message) => void;
  /** The connection has ended, for whatever reason. */
  onClose: () => void;
}

/** The user's end of a console. */
export class ConsoleConnection {
  private waiting: Uint8Array[] = []; // input beyond the window
  private window = INPUT_WINDOW;

  private constructor(
    private readonly socket: WebSocket,
    listener: ConsoleListener,
  ) {
    const reader = new MessageReader();
    socket.binaryType = "arraybuffer";
    socket.onmessage = ({ data: bytes }: MessageEvent<ArrayBuffer>) => {
      for (const message of reader.feed(new Uint8Array(bytes))) {
        if (message.kind === Frame.TAKEN) {
          this.window += Number(fieldsOf(message.payload)["bytes"] ?? 0);
          this.sendWaiting();
        } else {
          listener.onMessage(message);
        }
      }
    };
    socket.onclose = listener.onClose;
  }

  /** Opens a console of a run. Throws the refusals of the server. */
  static async open(
    run: string,
    body: Schemas["OpenConsoleIn"],
    listener: ConsoleListener,
  ): Promise<ConsoleConnection> {
    const { path } = await data(
      api.POST("/api/v1/runs/{id}/consoles", { params: { path: { id: run } }, body }),
    );
    const address = new URL(path, location.href);
    address.protocol = location.protocol === "https:" ? "wss:" : "ws:";
    return new ConsoleConnection(new WebSocket(address), listener);
  }

  /** Sends what the user types. Input that the program does not take yet waits here. */
  sendInput(text: string): void {
    const bytes = encoder.encode(text);
    for (let at = 0; at < bytes.length; at += DATA_BYTES) {
      this.waiting.push(bytes.subarray(at, at + DATA_BYTES));
    }
    this.sendWaiting();
  }

  sendFields(kind: number, fields: Record<string, unknown>): void {
    this.send(kind, encoder.encode(JSON.stringify(fields)));
  }

  close(): void {
    this.socket.close();
  }

  private sendWaiting(): void {
    for (
      let next = this.waiting[0];
      next !== undefined && next.length <= this.window;
      next = this.waiting[0]
    ) {
      this.waiting.shift();
      this.window -= next.length;
      this.send(Frame.INPUT, next);
    }
  }

  private send(kind: number, payload: Uint8Array): void {
    const message = encodeMessage(kind, payload);
    if (this.socket.readyState === WebSocket.CONNECTING) {
      this.socket.addEventListener("open", () => this.socket.send(message), { once: true });
    } else if (this.socket.readyState === WebSocket.OPEN) {
      this.socket.send(message);
    }
  }
}
