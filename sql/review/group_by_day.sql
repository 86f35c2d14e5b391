-- When does a group happen? Messages of each group per day (UTC), newest day first: died is how many were dead-lettered on
-- that day, sent_again and came_back what our redeliveries of that day became. Add `where group_trend.group_id = 7` for one
-- group.
select
    group_trend.route,
    group_trend.group_id,
    failure_groups.cause,
    group_trend.day,
    group_trend.died,
    group_trend.sent_again,
    group_trend.came_back,
    failure_groups.template
from group_trend
inner join failure_groups on group_trend.group_id = failure_groups.group_id
order by group_trend.day desc, group_trend.died desc, group_trend.group_id
limit 200
