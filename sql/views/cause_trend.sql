-- How many messages of each cause died per day (the day on which they were dead-lettered, else first enqueued).
drop view if exists cause_trend
--;
create view cause_trend as
select
    route,
    substr(cast(coalesce(dead_lettered_at, first_enqueued_at, changed_at) as text), 1, 10) as day,
    cause,
    count(*) as messages
from messages
where cause is not null
group by route, substr(cast(coalesce(dead_lettered_at, first_enqueued_at, changed_at) as text), 1, 10), cause
