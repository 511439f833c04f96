/** The typed client of the public API. Its types come from docs/openapi.json (`npm run api`). */
import createClient, { type Middleware } from "openapi-fetch";
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

let csrf = "";
let onSignedOut: () => void = () => undefined;

/** Sets what each changing request carries, and what happens once the session has ended. */
export function configureClient(options: { csrf: string; onSignedOut: () => void }): void {
  ({ csrf, onSignedOut } = options);
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

const session: Middleware = {
  onRequest({ request }) {
    if (request.method !== "GET" && csrf) {
      request.headers.set("X-Hopyard-Session", csrf);
    }
    return request;
  },
  async onResponse({ response }) {
    if (!response.ok) {
      if (response.status === 401) {
        onSignedOut();
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

export const api = createClient<paths>({ baseUrl: "/" });
api.use(session);

/** Returns the data of a response; the client has thrown for all others. */
export async function data<T>(request: Promise<{ data?: T }>): Promise<T> {
  return (await request).data as T;
}
