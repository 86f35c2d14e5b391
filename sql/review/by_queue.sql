-- Which queues suffer? Escalations that wait for a decision, by source, destination and cause.
select
    route,
    source,
    destination,
    cause,
    count(*) as open_messages,
    min(first_enqueued_at) as oldest
from escalated_messages
where status in ('open', 'refused', 'reopened')
group by route, source, destination, cause
order by open_messages desc, route, source, cause
