-- How many messages of each cause died per day, in UTC (the day on which they were dead-lettered, else first enqueued).
create view cause_trend as
with dated as (
    select
        route,
        cause,
        -- not after it was drained, whatever clock says so
        {day: coalesce(
            dead_lettered_at,
            case when first_enqueued_at > received_at then received_at else first_enqueued_at end,
            changed_at
        )} as day
    from messages
    where cause is not null
)

select
    route,
    day,
    cause,
    count(*) as messages
from dated
group by route, day, cause
