-- When does a group happen? Messages of each group per day, newest day first: died is how many were dead-lettered on that day (UTC),
-- sent_again and came_back what our redeliveries of that day became. Add `where group_id = 7` for one group.
with died as (
    select
        route,
        group_id,
        substr(cast(coalesce(dead_lettered_at, first_enqueued_at, changed_at) as text), 1, 10) as day,
        count(*) as died
    from messages
    where group_id is not null
    group by route, group_id, substr(cast(coalesce(dead_lettered_at, first_enqueued_at, changed_at) as text), 1, 10)
),

sends as (
    select
        route,
        group_id,
        substr(cast(sent_at as text), 1, 10) as day,
        count(*) as sent_again,
        sum(
            case when outcome = 'returned' and coalesce(return_kind, 'dead_letter') = 'dead_letter' then 1 else 0 end
        ) as came_back
    from redelivery_attempts
    where sent_at is not null and group_id is not null
    group by route, group_id, substr(cast(sent_at as text), 1, 10)
),

days as (
    select
        route,
        group_id,
        day
    from died
    union
    select
        route,
        group_id,
        day
    from sends
)

select
    days.route,
    days.group_id,
    failure_groups.cause,
    days.day,
    coalesce(died.died, 0) as died,
    coalesce(sends.sent_again, 0) as sent_again,
    coalesce(sends.came_back, 0) as came_back,
    failure_groups.template
from days
inner join failure_groups on days.group_id = failure_groups.group_id
left join died on days.route = died.route and days.group_id = died.group_id and days.day = died.day
left join sends on days.route = sends.route and days.group_id = sends.group_id and days.day = sends.day
order by days.day desc, died desc, days.group_id
limit 200
