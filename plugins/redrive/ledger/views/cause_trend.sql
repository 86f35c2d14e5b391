-- How many messages of each cause died per day, in UTC (the day on which they were dead-lettered, else first enqueued).
create view cause_trend as
with dated as (
    select
        route,
        cause,
        {day: coalesce(dead_lettered_at, first_enqueued_at, changed_at)} as day
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
