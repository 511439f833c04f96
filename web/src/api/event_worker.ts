/** The shared worker of all tabs of a browser: one connection to the stream of events for all of them. */
import { EventRelay, type ToRelay } from "./event_relay";

const relay = new EventRelay();
const scope = self as unknown as { onconnect: (event: MessageEvent) => void };

scope.onconnect = ({ ports: [port] }) => {
  if (port) {
    port.onmessage = ({ data }: MessageEvent<ToRelay>) => relay.receive(port, data);
  }
};
