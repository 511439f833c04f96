/** The typed client of the public API. Its types come from docs/openapi.json (`npm run api`). */
import createClient, { type Middleware } from "openapi-fetch";
import { noted, watched } from "./answers";
import type { components, paths } from "./schema";

export type Schemas = components["schemas"];

/** A refused or failed request, in the server's words. `status` is 0 where the server does not answer. */
export class ApiError extends Error {
  override name = "ApiError";

  constructor(
    readonly status: number,
    readonly code: string,
    message: string,
    readonly hints: readonly string[] = [],
  ) {
    super(message);
  }
}

/** Whether to read again: the server is away or restarts, or the user has to log in again. */
export function isTemporary(error: unknown): boolean {
  return error instanceof ApiError && ([0, 401].includes(error.status) || error.status >= 500);
}

interface ClientSession {
  /** What each changing request carries. */
  csrf: string;
  /** Whether there is no session: only requests that begin one are sent. */
  isSignedOut: boolean;
  onSignedOut: () => void;
  /** Reads the session again: another tab may have begun a new one. Returns whether the user is the same. */
  renew: () => Promise<boolean>;
}

let current: ClientSession = {
  csrf: "",
  isSignedOut: false,
  onSignedOut: () => undefined,
  renew: () => Promise.resolve(false),
};

export function configureClient(session: ClientSession): void {
  current = session;
}

async function toError(response: Response): Promise<ApiError> {
  const text = await response.text();
  try {
    const { error } = JSON.parse(text) as Schemas["ErrorBody"];
    return new ApiError(response.status, error.code, error.message, error.hints);
  } catch {
    return new ApiError(
      response.status,
      "server_fault",
      `the server answered with status ${response.status}`,
    );
  }
}

const SESSION_PATH = "/api/v1/session";
const CSRF_HEADER = "X-Hopyard-Session";
const ANSWER_MS = 60_000; // in which the answer to a reading request begins: a connection may be dead
// before a reading request is sent again: browsers fail all requests at once when a network appears or goes
const AGAIN_MS = [250, 1000];

/** Sends a request. A changing one is sent again after a refusal, if another tab has begun a new session. */
async function send(request: Request): Promise<Response> {
  const isOfSession = new URL(request.url).pathname === SESSION_PATH;
  if (current.isSignedOut && !isOfSession) {
    throw new ApiError(401, "not_authorised", "the session has ended", [
      "log in: the page continues by itself then",
    ]);
  }
  if (request.method === "GET") {
    return sendReading(request);
  }
  const { csrf } = current;
  const again = request.clone();
  const response = await noted(fetch(withCsrf(request, csrf)));
  if (response.status !== 403 || !(await current.renew()) || current.csrf === csrf) {
    return response;
  }
  return noted(fetch(withCsrf(again, current.csrf)));
}

function withCsrf(request: Request, csrf: string): Request {
  if (csrf) {
    request.headers.set(CSRF_HEADER, csrf);
  }
  return request;
}

async function sendReading(request: Request): Promise<Response> {
  const late = new AbortController();
  const timer = setTimeout(() => late.abort(new TypeError("no answer")), ANSWER_MS);
  try {
    const signal = AbortSignal.any([request.signal, late.signal]);
    return await watched(fetchAgain(request, signal));
  } finally {
    clearTimeout(timer);
  }
}

async function fetchAgain(request: Request, signal: AbortSignal): Promise<Response> {
  for (const ms of AGAIN_MS) {
    try {
      return await fetch(request, { signal });
    } catch (error) {
      if (signal.aborted) {
        throw error;
      }
      await new Promise((resolve) => setTimeout(resolve, ms));
    }
  }
  return fetch(request, { signal });
}

const session: Middleware = {
  async onResponse({ response }) {
    if (!response.ok) {
      if (response.status === 401) {
        current.onSignedOut();
      }
      throw await toError(response);
    }
  },
  onError({ error }) {
    if (error instanceof ApiError || (error instanceof DOMException && error.name === "AbortError")) {
      return error;
    }
    return new ApiError(0, "server_unavailable", "the server does not answer", [
      "the page continues by itself once it does",
    ]);
  },
};

export const api = createClient<paths>({ baseUrl: "/", fetch: send });
api.use(session);

/** Returns the data of a response; the client has thrown for all others. */
export async function data<T>(request: Promise<{ data?: T }>): Promise<T> {
  return (await request).data as T;
}
