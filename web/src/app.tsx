import { Suspense } from "preact/compat";
import { useLayoutEffect, useState } from "preact/hooks";
import { Redirect, Route, Switch, useLocation } from "wouter-preact";
import { CSPProvider } from "@base-ui/react/csp-provider";
import { isTemporary } from "@/api/client";
import { isSignedOut, loadSession, session } from "@/api/session";
import { LoginAgain, LoginPage } from "@/pages/login/login_page";
import { ErrorBoundary } from "@/parts/error_boundary";
import { AwayNotice, Empty, ErrorNotice, Loading } from "@/parts/notices";
import styles from "./app.module.css";
import { CommandPalette } from "./shell/command_palette";
import { useCurrentRights } from "./shell/current_rights";
import { Keyboard } from "./shell/keyboard";
import { Navigation } from "./shell/navigation";
import { focusPage, usePageFocus } from "./shell/page_focus";
import { OTHER_PAGES, PAGES, RunPage } from "./shell/pages";

const RETRY_MS = 1000;

/** The application: the login, or the pages beside their navigation. Waits for a server that is away. */
export function App() {
  const [error, setError] = useState<unknown>(null);
  const [location] = useLocation();
  usePageFocus(location);
  useCurrentRights(session.value?.user);
  // before the first frame is drawn: everything else waits for the session
  useLayoutEffect(() => {
    let timer = 0;
    const load = (): void => {
      loadSession()
        .then(() => setError(null))
        .catch((failure: unknown) => {
          setError(failure);
          if (isTemporary(failure)) {
            timer = window.setTimeout(load, RETRY_MS);
          }
        });
    };
    load();
    return () => window.clearTimeout(timer);
  }, []);

  if (session.value === undefined) {
    return error === null ? <Loading /> : <ErrorNotice error={error} />;
  }
  if (session.value === null) {
    return <LoginPage />;
  }
  return (
    // without its style elements, which the content security policy of the page refuses
    <CSPProvider disableStyleElements>
      {isSignedOut.value && <LoginAgain user={session.value.user} />}
      <div key={session.value.user} class={styles["frame"]}>
        <a
          href="#page"
          class={styles["skip"]}
          onClick={(event) => {
            event.preventDefault(); // the address of the page stays
            focusPage();
          }}
        >
          Skip to the page
        </a>
        <Navigation />
        <Keyboard />
        <CommandPalette />
        <main id="page" class={styles["page"]} tabIndex={-1}>
          <AwayNotice />
          <ErrorBoundary location={location}>
            <Suspense fallback={<Loading />}>
              <Switch>
                {[...PAGES, ...OTHER_PAGES].map((page) => (
                  <Route key={page.path} path={page.path}>
                    <page.component />
                  </Route>
                ))}
                <Route path="/runs/*">
                  <RunPage />
                </Route>
                <Route path="/">
                  <Redirect to="/runs" replace />
                </Route>
                <Route path="/login">
                  <Redirect to="/runs" replace />
                </Route>
                <Route>
                  <Empty title="There is no such page" />
                </Route>
              </Switch>
            </Suspense>
          </ErrorBoundary>
        </main>
      </div>
    </CSPProvider>
  );
}
