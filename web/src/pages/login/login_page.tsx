import { useEffect, useState } from "preact/hooks";
import { logIn } from "@/api/session";
import { Button } from "@/parts/button";
import { ErrorNotice } from "@/parts/notices";
import styles from "./login_page.module.css";

/** Returns the secret of a one-time link, and takes it out of the address and the history. */
function takeLink(): string | null {
  const secret = new URLSearchParams(location.search).get("link");
  if (secret !== null) {
    history.replaceState(null, "", "/runs");
  }
  return secret;
}

/** Logs in by the one-time link in the address, or by a token that is pasted. */
export function LoginPage() {
  const [link] = useState(takeLink);
  const [token, setToken] = useState("");
  const [isBusy, setBusy] = useState(link !== null);
  const [error, setError] = useState<unknown>(null);

  const submit = (proof: { link: string } | { token: string }) => {
    setBusy(true);
    logIn(proof)
      .catch(setError)
      .finally(() => setBusy(false));
  };
  useEffect(() => {
    if (link !== null) {
      submit({ link });
    }
  }, [link]);

  return (
    <main class={styles["page"]}>
      <form
        class={styles["form"]}
        onSubmit={(event) => {
          event.preventDefault();
          submit({ token: token.trim() });
        }}
      >
        <img src="/favicon.svg" alt="" width="40" height="40" />
        <h1>Log in to Hopyard</h1>
        <p>
          Type <code>hop ui</code> in a terminal: it opens this page and logs you in. Or paste a token of{" "}
          <code>hop token create</code>.
        </p>
        <label>
          Token
          <input
            name="token"
            type="password"
            autocomplete="current-password"
            value={token}
            onInput={(event) => setToken(event.currentTarget.value)}
          />
        </label>
        <Button kind="primary" type="submit" disabled={isBusy || token.trim() === ""}>
          {isBusy ? "Logging in…" : "Log in"}
        </Button>
        {error !== null && <ErrorNotice error={error} />}
      </form>
    </main>
  );
}
