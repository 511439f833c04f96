import type { ComponentChildren } from "preact";
import { createPortal } from "preact/compat";
import { useEffect, useRef, useState } from "preact/hooks";
import { loadSession, logIn } from "@/api/session";
import { Button } from "@/parts/button";
import { ErrorNotice } from "@/parts/notices";
import icon from "@/shell/icon.svg";
import styles from "./login_page.module.css";

const LOOK_MS = 10_000;

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
  return (
    <main class={styles["page"]}>
      <LoginForm title="Log in to Hopyard" link={link} />
    </main>
  );
}

/** Covers the pages after the end of the session, with what was typed there, until there is a session again: of this
 *  tab, or of another one. */
export function LoginAgain({ user }: { user: string }) {
  const dialog = useRef<HTMLDialogElement>(null);
  useEffect(() => {
    dialog.current?.showModal(); // above the dialogs of the pages
    const look = () => {
      if (!document.hidden) {
        loadSession().catch(() => undefined); // away: looked again later
      }
    };
    const timer = window.setInterval(look, LOOK_MS);
    document.addEventListener("visibilitychange", look);
    return () => {
      window.clearInterval(timer);
      document.removeEventListener("visibilitychange", look);
    };
  }, []);
  // beside the dialogs of the pages, which hide all else from screen readers
  return createPortal(
    <dialog
      ref={dialog}
      class={styles["again"]}
      aria-label="log in again"
      onCancel={(event) => event.preventDefault()}
      onKeyDown={(event) => event.stopPropagation()}
    >
      <LoginForm title={`The session of ${user} has ended`} link={null}>
        The page continues where it was, with what you typed.
      </LoginForm>
    </dialog>,
    document.body,
  );
}

function LoginForm({
  title,
  link,
  children,
}: {
  title: string;
  link: string | null;
  children?: ComponentChildren;
}) {
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
    <form
      class={styles["form"]}
      onSubmit={(event) => {
        event.preventDefault();
        submit({ token: token.trim() });
      }}
    >
      <img src={icon} alt="" width="40" height="40" />
      <h1>{title}</h1>
      {children !== undefined && <p>{children}</p>}
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
  );
}
