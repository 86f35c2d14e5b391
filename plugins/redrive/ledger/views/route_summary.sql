-- Each route at a glance: open messages, outcomes, and the time from first enqueue to outcome against which
-- the route's SLO is read (seconds; nearest rank percentiles over presumed and confirmed messages).
create view route_summary as
with finished as (
    select
        messages.route,
        -- not from after it was drained, whatever clock says so
        {seconds: case when messages.first_enqueued_at > messages.received_at then messages.received_at
            else messages.first_enqueued_at end -> redelivery_attempts.outcome_at} as seconds
    from messages
    inner join redelivery_attempts
        on
            redelivery_attempts.message_id = messages.message_id
            and redelivery_attempts.attempt = messages.attempts
            and redelivery_attempts.outcome in ('presumed', 'confirmed')
    where messages.state in ('presumed', 'confirmed') and messages.first_enqueued_at is not null
),

ranked as (
    select
        route,
        seconds,
        row_number() over (partition by route order by seconds) as place,
        count(*) over (partition by route) as total
    from finished
),

times as (
    select
        route,
        min(case when place >= 0.50 * total then seconds end) as p50_seconds,
        min(case when place >= 0.95 * total then seconds end) as p95_seconds,
        min(case when place >= 0.99 * total then seconds end) as p99_seconds
    from ranked
    group by route
)

select
    message_balance.*,
    times.p50_seconds,
    times.p95_seconds,
    times.p99_seconds,
    route_state.paused_at,
    route_state.pause_reason,
    route_state.run_id as held_by_run
from message_balance
left join times on times.route = message_balance.route
left join route_state on route_state.route = message_balance.route
