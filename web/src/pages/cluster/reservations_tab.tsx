import { useState } from "preact/hooks";
import { Link, useSearchParams } from "wouter-preact";
import { api, data, type Schemas } from "@/api/client";
import { whyNoReserve } from "@/api/rights";
import { session } from "@/api/session";
import { ActionDialog } from "@/parts/action_dialog";
import { Button } from "@/parts/button";
import { Dialog, DialogButtons } from "@/parts/dialog";
import { Empty, ErrorNotice, Loading } from "@/parts/notices";
import pageStyles from "@/parts/page.module.css";
import { formatCount } from "@/text/format";
import styles from "./cluster.module.css";
import { nodeHref, queueHref, readCalendar } from "./cluster_data";
import { dayKey, monthDays, monthKey, monthRange, readMonth } from "./month";
import { ReserveDialog } from "./reserve_dialog";
import type { Occurrence } from "./spans";
import { useLive } from "./use_live";

const WEEKDAYS = ["Mon", "Tue", "Wed", "Thu", "Fri", "Sat", "Sun"];
const MAX_SHOWN = 4; // of a day
const pad = (value: number) => String(value).padStart(2, "0");

/** Reservations on a calendar: a month, each occurrence on its days. */
export function ReservationsTab() {
  const [address, setAddress] = useSearchParams();
  const first = readMonth(address.get("month"), new Date());
  const { since, until } = monthRange(first);
  const calendar = useLive(
    `calendar ${monthKey(first)}`,
    () => readCalendar(since.toISOString(), until.toISOString()),
    ["reservation", "queues"],
  );
  const [isNew, setNew] = useState(false);
  const [shown, setShown] = useState<string | null>(null);
  const [openDay, setOpenDay] = useState<string | null>(null);
  const show = (months: number | null) => {
    const next = months === null ? new Date() : new Date(first.getFullYear(), first.getMonth() + months, 1);
    setAddress({ tab: "reservations", month: monthKey(next) }, { replace: true });
  };
  const title = first.toLocaleDateString(undefined, { month: "long", year: "numeric" });
  const days = monthDays(first, calendar.data ?? []);
  const today = dayKey(new Date());
  const refusal = whyNoReserve();
  return (
    <>
      <div class={pageStyles["bar"]}>
        <Button onClick={() => show(-1)} aria-label="month before">
          ‹
        </Button>
        <Button onClick={() => show(null)}>Today</Button>
        <Button onClick={() => show(1)} aria-label="month after">
          ›
        </Button>
        <h2 class={styles["name"]}>{title}</h2>
        <Button kind="primary" disabled={refusal !== ""} title={refusal} onClick={() => setNew(true)}>
          Reserve…
        </Button>
      </div>
      {!calendar.data && (calendar.error === null ? <Loading /> : <ErrorNotice error={calendar.error} />)}
      {calendar.data?.length === 0 && (
        <Empty title={`No reservations in ${title}`} command="hop reserve exam --nodes box --for 4h">
          <p>A reservation keeps nodes or resources for users or a queue, for a time.</p>
        </Empty>
      )}
      {calendar.data && (
        <div class={styles["calendar"]} tabIndex={0} role="group" aria-label={`reservations in ${title}`}>
          {WEEKDAYS.map((name) => (
            <b key={name} class={styles["weekday"]} aria-hidden="true">
              {name}
            </b>
          ))}
          {days.map((day) => (
            <section
              key={day.key}
              class={`${styles["day"]} ${day.isInMonth ? "" : styles["otherMonth"]} ${day.key === today ? styles["today"] : ""} ${day.occurrences.length === 0 ? styles["emptyDay"] : ""}`}
              aria-label={day.key}
            >
              <span class={styles["date"]}>{day.date.getDate()}</span>
              {day.occurrences.slice(0, openDay === day.key ? undefined : MAX_SHOWN).map((each) => (
                <button
                  key={`${each.reservation} ${each.start_at}`}
                  type="button"
                  class={styles["chip"]}
                  onClick={() => setShown(each.reservation)}
                  title={chipText(each, day.date)}
                >
                  {chipText(each, day.date)}
                </button>
              ))}
              {openDay !== day.key && day.occurrences.length > MAX_SHOWN && (
                <button type="button" class={styles["more"]} onClick={() => setOpenDay(day.key)}>
                  {day.occurrences.length - MAX_SHOWN} more
                </button>
              )}
            </section>
          ))}
        </div>
      )}
      {isNew && <ReserveDialog onClose={() => setNew(false)} onDone={calendar.reload} />}
      {shown !== null && (
        <ReservationDialog name={shown} onClose={() => setShown(null)} onDone={calendar.reload} />
      )}
    </>
  );
}

/** Returns `09:00 exam`, or `… exam` on a later day of the occurrence. */
function chipText(occurrence: Occurrence, day: Date): string {
  const start = new Date(occurrence.start_at);
  const clock = start < day ? "…" : `${pad(start.getHours())}:${pad(start.getMinutes())}`;
  return `${clock} ${occurrence.reservation}`;
}

function mayDelete(reservation: Schemas["ReservationOut"]): boolean {
  const own = session.value;
  if (!own?.scopes.includes("admin")) {
    return false;
  }
  const isOfQueue = reservation.queue !== null && reservation.users.length === 0;
  return (
    own.owner ||
    own.user === reservation.created_by ||
    (isOfQueue && own.admin_queues.includes(reservation.queue ?? ""))
  );
}

function ReservationDialog({
  name,
  onClose,
  onDone,
}: {
  name: string;
  onClose: () => void;
  onDone: () => void;
}) {
  const [isAsked, setAsked] = useState(false);
  const { data: found, error } = useLive(
    `reservation ${name}`,
    () => data(api.GET("/api/v1/reservations/{reservation}", { params: { path: { reservation: name } } })),
    [],
  );
  const remove = async () => {
    await data(api.DELETE("/api/v1/reservations/{reservation}", { params: { path: { reservation: name } } }));
    onDone();
    onClose();
  };
  if (isAsked) {
    return (
      <ActionDialog
        title={`Delete reservation ${name}?`}
        confirm="Delete"
        kind="danger"
        onConfirm={remove}
        onClose={() => setAsked(false)}
      >
        <p>Its capacity is free at once, for all of its occurrences.</p>
      </ActionDialog>
    );
  }
  return (
    <Dialog title={`Reservation ${name}`} isOpen onClose={onClose}>
      {!found && (error === null ? <Loading rows={4} /> : <ErrorNotice error={error} />)}
      {found && <ReservationFacts reservation={found} />}
      <DialogButtons>
        {found && mayDelete(found) && (
          <Button kind="danger" onClick={() => setAsked(true)}>
            Delete…
          </Button>
        )}
        <Button onClick={onClose}>Close</Button>
      </DialogButtons>
    </Dialog>
  );
}

function ReservationFacts({ reservation }: { reservation: Schemas["ReservationOut"] }) {
  const clock = (at: string | null) => (at === null ? "–" : new Date(at).toLocaleString());
  const pieces = reservation.resources;
  return (
    <dl class={styles["facts"]}>
      <div>
        <dt>{reservation.active ? "Now, until" : "Next"}</dt>
        <dd>
          {reservation.active
            ? clock(reservation.next_end_at)
            : reservation.next_start_at === null
              ? "it is over"
              : `${clock(reservation.next_start_at)} to ${clock(reservation.next_end_at)}`}
        </dd>
      </div>
      <div>
        <dt>For</dt>
        <dd>
          {[...reservation.users, ...(reservation.queue === null ? [] : [`queue ${reservation.queue}`])].join(
            ", ",
          )}
          {reservation.queue !== null && (
            <>
              {" "}
              <Link href={queueHref(reservation.queue)}>show</Link>
            </>
          )}
        </dd>
      </div>
      <div>
        <dt>Nodes</dt>
        <dd>
          {[...new Set(reservation.nodes)].map((node) => (
            <span key={node}>
              <Link href={nodeHref(node)}>{node}</Link>{" "}
            </span>
          ))}
        </dd>
      </div>
      {pieces !== null && (
        <div>
          <dt>Each piece</dt>
          <dd>
            {pieces.gpus ?? 0} GPUs, {(pieces.cpu_milli ?? 0) / 1000} CPUs;{" "}
            {reservation.pieces.reduce((sum, count) => sum + count, 0)} pieces
          </dd>
        </div>
      )}
      {reservation.every_s > 0 && (
        <div>
          <dt>Repeats</dt>
          <dd>
            every {formatCount(reservation.every_s / 86400, "day")}
            {reservation.until === null ? "" : `, until ${clock(reservation.until)}`}
          </dd>
        </div>
      )}
      <div>
        <dt>Created by</dt>
        <dd>{reservation.created_by}</dd>
      </div>
    </dl>
  );
}
